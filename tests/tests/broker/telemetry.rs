//! Client metrics (KIP-714): which metrics the broker requests from each client, and how it responds to a push.

use bytes::Bytes;
use fullbore_tests::{Broker, Client};
use fullbore_wire::api::ApiKey;
use fullbore_wire::apis::api_versions::ApiVersionsRequest;
use fullbore_wire::apis::get_telemetry_subscriptions::{
    GetTelemetrySubscriptionsRequest, GetTelemetrySubscriptionsResponse,
};
use fullbore_wire::apis::push_telemetry::PushTelemetryRequest;
use fullbore_wire::{ErrorCode, Uuid};
use std::time::Duration;

const CLIENT_METRICS: i8 = 16;
const ZERO: Uuid = Uuid::ZERO;
const SOON: Duration = Duration::from_secs(30);
/// An interval in milliseconds that is longer than any test.
const LONG: &str = "3600000";

fn request(client: &mut Client, client_instance_id: Uuid) -> GetTelemetrySubscriptionsResponse {
    client.call(&GetTelemetrySubscriptionsRequest { client_instance_id, ..Default::default() }, 0)
}

/// Returns the metrics that the broker requests in its response to a client's first request.
fn wanted(client: &mut Client) -> Vec<String> {
    let response = request(client, ZERO);
    assert_eq!(response.error_code, ErrorCode::NONE);
    response.requested_metrics.iter().map(|metric| metric.to_string()).collect()
}

fn push_of(of: &GetTelemetrySubscriptionsResponse) -> PushTelemetryRequest {
    PushTelemetryRequest {
        client_instance_id: of.client_instance_id,
        subscription_id: of.subscription_id,
        metrics: Bytes::from_static(b"nobody reads this"),
        ..Default::default()
    }
}

fn push(client: &mut Client, push: &PushTelemetryRequest) -> ErrorCode {
    client.call(push, 0).error_code
}

#[test]
fn no_subscription_requests_no_metrics() {
    let broker = Broker::start(&["telemetry.max.bytes=5000"]);
    assert!(!broker.client().offered().contains(&ApiKey::PushTelemetry), "without a subscription it is not offered");
    let mut client = broker.client();
    let first = request(&mut client, ZERO);
    assert_eq!(first.error_code, ErrorCode::NONE);
    assert_ne!(first.client_instance_id, ZERO);
    assert!(first.requested_metrics.is_empty());
    assert_eq!((first.push_interval_ms, first.telemetry_max_bytes), (300_000, 5000));
    assert_eq!(first.accepted_compression_types, [4, 3, 1, 2]);
    assert!(first.delta_temporality);
    assert_ne!(request(&mut client, ZERO).client_instance_id, first.client_instance_id);
    let again = request(&mut client, first.client_instance_id);
    assert_eq!(again.error_code, ErrorCode::THROTTLING_QUOTA_EXCEEDED);
}

#[test]
fn matching_subscriptions_are_merged_at_the_shortest_interval() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let software = ApiVersionsRequest {
        client_software_name: "franz-go".into(),
        client_software_version: "1.2.3".into(),
        ..Default::default()
    };
    client.call(&software, 3);
    let subscribe = |client: &mut Client, name: &str, metrics: &str, interval: &str, pattern: &str| {
        client.set_config(CLIENT_METRICS, name, "metrics", metrics);
        client.set_config(CLIENT_METRICS, name, "interval.ms", interval);
        if !pattern.is_empty() {
            client.set_config(CLIENT_METRICS, name, "match", pattern);
        }
    };
    subscribe(&mut client, "all", "b.,a.", "60000", "");
    assert!(client.offered().contains(&ApiKey::PushTelemetry));
    assert_eq!(wanted(&mut client), ["a.", "b."]);
    subscribe(
        &mut client,
        "software",
        "c.",
        "20000",
        "client_software_name=franz-.*,client_software_version=1\\.2\\..*",
    );
    subscribe(&mut client, "id", "d.", "90000", "client_id=fullbore-tests");
    subscribe(&mut client, "address", "e.", "90000", "client_source_address=127\\.0\\.0\\.1");
    for (at, pattern) in
        ["client_software_name=franz", "client_id=.*,client_source_port=1", "client_source_address=10.*"]
            .iter()
            .enumerate()
    {
        subscribe(&mut client, &format!("other-{at}"), "z.", "1000", pattern);
    }
    let response = request(&mut client, ZERO);
    assert_eq!(response.push_interval_ms, 20_000);
    let metrics: Vec<&str> = response.requested_metrics.iter().map(|metric| metric.as_str()).collect();
    assert_eq!(metrics, ["a.", "b.", "c.", "d.", "e."]);
    assert_eq!(wanted(&mut broker.client()), ["a.", "b.", "d.", "e."], "of one that does not say what it is");
    let mine = Uuid([7; 16]);
    subscribe(&mut client, "instance", "*", "90000", &format!("client_instance_id={mine}"));
    assert_eq!(request(&mut client, mine).requested_metrics, ["*"]);
}

#[test]
fn push_is_accepted_once_an_interval_and_refused_after_a_changed_subscription() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.set_config(CLIENT_METRICS, "s", "metrics", "a.");
    client.set_config(CLIENT_METRICS, "s", "interval.ms", LONG);
    let requested = request(&mut client, ZERO);
    assert_eq!(push(&mut client, &push_of(&requested)), ErrorCode::NONE);
    assert_eq!(push(&mut client, &push_of(&requested)), ErrorCode::THROTTLING_QUOTA_EXCEEDED);

    client.set_config(CLIENT_METRICS, "s", "metrics", "b.");
    let mut last = PushTelemetryRequest { terminating: true, ..push_of(&requested) };
    assert_eq!(push(&mut client, &last), ErrorCode::UNKNOWN_SUBSCRIPTION_ID);
    let changed = request(&mut client, requested.client_instance_id);
    assert_eq!((changed.error_code, &changed.requested_metrics[0]), (ErrorCode::NONE, &"b.".into()));
    assert_ne!(changed.subscription_id, requested.subscription_id);
    last.subscription_id = changed.subscription_id;
    assert_eq!(push(&mut client, &push_of(&changed)), ErrorCode::NONE);
    assert_eq!(push(&mut client, &last), ErrorCode::NONE, "the last one may come early");
    assert_eq!(push(&mut client, &last), ErrorCode::INVALID_REQUEST, "and is the last");
}

#[test]
fn pushes_are_accepted_at_the_interval() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.set_config(CLIENT_METRICS, "s", "metrics", "*");
    client.set_config(CLIENT_METRICS, "s", "interval.ms", "100");
    let requested = request(&mut client, ZERO);
    let mut taken = 0;
    fullbore_tests::wait_until("three pushes are taken", SOON, || {
        match push(&mut client, &push_of(&requested)) {
            ErrorCode::NONE => taken += 1,
            code => assert_eq!(code, ErrorCode::THROTTLING_QUOTA_EXCEEDED),
        }
        taken == 3
    });
}

#[test]
fn each_refusal_of_a_push_has_its_error() {
    let broker = Broker::start(&["telemetry.max.bytes=100"]);
    let mut client = broker.client();
    client.set_config(CLIENT_METRICS, "s", "metrics", "*");
    client.set_config(CLIENT_METRICS, "s", "interval.ms", LONG);
    for (codec, bytes, expected) in [
        (0, 100, ErrorCode::NONE),
        (1, 100, ErrorCode::NONE),
        (4, 0, ErrorCode::NONE),
        (0, 101, ErrorCode::TELEMETRY_TOO_LARGE),
        (5, 1, ErrorCode::UNSUPPORTED_COMPRESSION_TYPE),
        (-1, 1, ErrorCode::UNSUPPORTED_COMPRESSION_TYPE),
    ] {
        let requested = request(&mut client, ZERO);
        let metrics = Bytes::from(vec![1; bytes]);
        let request = PushTelemetryRequest { compression_type: codec, metrics, ..push_of(&requested) };
        assert_eq!(push(&mut client, &request), expected, "codec {codec}, {bytes} bytes");
    }
    let requested = request(&mut client, ZERO);
    let of_nobody = PushTelemetryRequest { client_instance_id: ZERO, ..push_of(&requested) };
    assert_eq!(push(&mut client, &of_nobody), ErrorCode::INVALID_REQUEST);
    let stranger = PushTelemetryRequest { client_instance_id: Uuid([9; 16]), ..push_of(&requested) };
    assert_eq!(push(&mut client, &stranger), ErrorCode::UNKNOWN_SUBSCRIPTION_ID, "ids are of one client");
}
