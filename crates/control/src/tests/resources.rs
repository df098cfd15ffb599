//! Tests of the settings of groups and client metrics: they are stored and returned, and a resource is removed together
//! with its last setting.

use super::*;
use fullbore_config::Resource;

async fn set(
    control: &Control,
    resource: Resource,
    name: &str,
    changes: &[(&str, ConfigChange)],
) -> Result<(), Refusal> {
    let changes = changes.iter().map(|(key, change)| ((*key).to_owned(), change.clone())).collect();
    let resources = vec![AlterResourceConfig { resource, name: name.into(), changes }];
    control.alter_resource_configs(AlterResourceConfigs { resources, validate_only: false }).await.remove(0)
}

fn to(value: &str) -> ConfigChange {
    ConfigChange::Set(value.into())
}

const SESSION: &str = "consumer.session.timeout.ms";

#[tokio::test]
async fn group_settings_are_in_force_survive_a_restart_and_can_be_removed() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path());
    let session = |control: &Control, group: &str| control.image().group_timeouts(group).consumer_session_timeout_ms;
    assert_eq!(session(&opened.control, "g"), 45_000);
    set(&opened.control, Resource::Group, "g", &[(SESSION, to("46000"))]).await.expect("set");
    assert_eq!([session(&opened.control, "g"), session(&opened.control, "other")], [46_000, 45_000]);
    drop(opened);

    let file = "group.consumer.session.timeout.ms=50000";
    let opened = try_open(directory.path(), file).expect("opens");
    assert_eq!([session(&opened.control, "g"), session(&opened.control, "other")], [46_000, 50_000]);
    assert_eq!(opened.control.image().resource_names(Resource::Group).collect::<Vec<_>>(), ["g"]);
    drop(opened);
    let limits = "group.consumer.min.session.timeout.ms=47000\ngroup.consumer.session.timeout.ms=47000";
    assert_eq!(
        session(&try_open(directory.path(), limits).expect("opens").control, "g"),
        47_000,
        "within the new limits"
    );

    let opened = open(directory.path());
    set(&opened.control, Resource::Group, "g", &[(SESSION, ConfigChange::Delete)]).await.expect("deleted");
    assert_eq!(session(&opened.control, "g"), 45_000);
    assert!(opened.control.image().resource(Resource::Group, "g").is_none());
    drop(opened);
    assert!(open(directory.path()).control.image().resource_names(Resource::Group).next().is_none());
}

#[tokio::test]
async fn subscription_and_group_of_one_name_are_separate() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path());
    let changes =
        [("metrics", to("org.a")), ("metrics", ConfigChange::Append("org.b".into())), ("interval.ms", to("500"))];
    set(&opened.control, Resource::ClientMetrics, "same", &changes).await.expect("set");
    set(&opened.control, Resource::Group, "same", &[(SESSION, to("46000"))]).await.expect("set");
    drop(opened);
    let opened = open(directory.path());
    let image = opened.control.image();
    let (name, config) = image.client_metrics().next().expect("kept");
    assert_eq!((name, config.metrics.join(" "), config.interval_ms), ("same", "org.a org.b".to_owned(), 500));
    assert_eq!(image.client_metrics().count(), 1);
}

#[tokio::test]
async fn a_refused_change_changes_nothing() {
    let directory = tempfile::tempdir().expect("tempdir");
    let control = &open(directory.path()).control;
    let changes = [(SESSION, to("46000")), ("no.such", to("1"))];
    let refusal = set(control, Resource::Group, "g", &changes).await.expect_err("refused");
    assert_eq!((refusal.code, &*refusal.message), (ErrorCode::INVALID_CONFIG, "no.such: unknown group config name"));
    let refusal =
        set(control, Resource::Group, "g", &[(SESSION, ConfigChange::Append("1".into()))]).await.expect_err("no list");
    assert_eq!(refusal.code, ErrorCode::INVALID_CONFIG);
    assert!(control.image().resource(Resource::Group, "g").is_none());
    assert_eq!(control.image().epoch(), 1, "the broker registered");
}

/// If a list did not fit into a response, the broker would have to disconnect every client that requests it.
#[tokio::test]
async fn list_setting_grows_up_to_the_size_of_a_response() {
    let directory = tempfile::tempdir().expect("tempdir");
    let control = &open(directory.path()).control;
    let more = |letter: &str| [("metrics", ConfigChange::Append(letter.repeat(20_000)))];
    set(control, Resource::ClientMetrics, "m", &more("a")).await.expect("appended");
    let refusal = set(control, Resource::ClientMetrics, "m", &more("b")).await.expect_err("too long");
    assert_eq!(refusal.code, ErrorCode::INVALID_CONFIG);
}

#[tokio::test]
async fn number_of_client_metrics_subscriptions_is_limited() {
    let directory = tempfile::tempdir().expect("tempdir");
    let control = &open(directory.path()).control;
    let interval = |value: &str| [("interval.ms", to(value))];
    for number in 0..100 {
        set(control, Resource::ClientMetrics, &number.to_string(), &interval("500")).await.expect("set");
    }
    let refusal = set(control, Resource::ClientMetrics, "more", &interval("500")).await.expect_err("too many");
    assert_eq!(refusal.code, ErrorCode::POLICY_VIOLATION);
    set(control, Resource::ClientMetrics, "7", &interval("600")).await.expect("one that is there");
    set(control, Resource::Group, "more", &[(SESSION, to("46000"))]).await.expect("a group");
    set(control, Resource::ClientMetrics, "7", &[("interval.ms", ConfigChange::Delete)]).await.expect("deleted");
    set(control, Resource::ClientMetrics, "more", &interval("500")).await.expect("there is room");
}
