//! Changes of feature levels. The checks and their order are the same as in Kafka's `FeatureControlManager`.

use fullbore_wire::ErrorCode;

use super::super::change::Change;
use super::super::command::{FeatureUpdate, Refusal, UpgradeType};
use super::super::features;
use super::super::image::Image;

/// Returns the changes for all updates. If one update is refused, returns only the refusal.
pub fn update_features(image: &Image, node_id: i32, updates: &[FeatureUpdate]) -> Result<Vec<Change>, Refusal> {
    updates.iter().map(|update| update_feature(image, node_id, update)).collect()
}

fn update_feature(image: &Image, node_id: i32, update: &FeatureUpdate) -> Result<Change, Refusal> {
    let refuse = |why: &str| {
        let FeatureUpdate { name, level, .. } = update;
        let message = format!("Invalid update version {level} for feature {name}. {why}");
        Err(Refusal::new(ErrorCode::INVALID_UPDATE_VERSION, message))
    };
    let Some(kind) = update.kind else { return refuse("The controller does not support the given upgrade type.") };
    if update.level < 0 {
        return refuse("A feature version cannot be less than 0.");
    }
    let Some(feature) = features::find(&update.name) else {
        return refuse(&format!("Local controller {node_id} does not support this feature."));
    };
    if !(feature.min..=feature.max).contains(&update.level) {
        let range = if feature.min == feature.max {
            feature.min.to_string()
        } else {
            format!("{}-{}", feature.min, feature.max)
        };
        return refuse(&format!("Local controller {node_id} only supports versions {range}"));
    }
    let current = image.feature_level(feature);
    if update.level < current && kind == UpgradeType::Upgrade {
        return refuse(
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade.",
        );
    }
    if update.level > current && kind != UpgradeType::Upgrade {
        return refuse("Can't downgrade to a newer version.");
    }
    Ok(Change::FeatureUpdated { name: update.name.clone(), level: update.level })
}

#[cfg(test)]
mod tests {
    use super::*;
    use UpgradeType::{SafeDowngrade, UnsafeDowngrade, Upgrade};

    fn outcome(image: &Image, name: &str, level: i16, kind: Option<UpgradeType>) -> Result<Vec<Change>, String> {
        let update = FeatureUpdate { name: name.to_owned(), level, kind };
        update_features(image, 7, &[update]).map_err(|refusal| refusal.message.into_owned())
    }

    fn at(level: i16) -> Image {
        let (broker, _) = fullbore_config::BrokerConfig::from_properties(&Default::default()).expect("valid");
        let mut image = Image::default();
        let change = Change::FeatureUpdated { name: "transaction.version".into(), level };
        image.apply(&broker, &change).expect("applied");
        image
    }

    #[test]
    fn supported_level_rises_by_upgrade_and_falls_by_downgrade() {
        let name = "transaction.version";
        for (before, level, kind) in [
            (0, 2, Upgrade),
            (1, 1, Upgrade),
            (2, 2, Upgrade),
            (2, 0, SafeDowngrade),
            (2, 1, UnsafeDowngrade),
            (1, 1, SafeDowngrade),
        ] {
            let change = Change::FeatureUpdated { name: name.into(), level };
            assert_eq!(outcome(&at(before), name, level, Some(kind)), Ok(vec![change]), "{before} to {level}");
        }
        assert_eq!(Image::default().feature_level(&features::TRANSACTION_VERSION), 2, "the highest unless it is set");
    }

    #[test]
    fn unsupported_level_is_refused_with_kafkas_message() {
        for (name, level, kind, why) in [
            ("transaction.version", 3, Some(Upgrade), "Local controller 7 only supports versions 0-2"),
            ("transaction.version", -1, Some(SafeDowngrade), "A feature version cannot be less than 0."),
            ("transaction.version", 2, None, "The controller does not support the given upgrade type."),
            (
                "transaction.version",
                0,
                Some(Upgrade),
                "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade.",
            ),
            ("transaction.version", 2, Some(SafeDowngrade), "Can't downgrade to a newer version."),
            ("metadata.version", 29, Some(SafeDowngrade), "Local controller 7 only supports versions 30"),
            ("share.version", 1, Some(Upgrade), "Local controller 7 does not support this feature."),
        ] {
            let expected = format!("Invalid update version {level} for feature {name}. {why}");
            assert_eq!(outcome(&at(1), name, level, kind), Err(expected));
        }
    }

    #[test]
    fn one_refused_update_refuses_all_of_the_request() {
        let update = |level| FeatureUpdate { name: "transaction.version".into(), level, kind: Some(Upgrade) };
        assert!(update_features(&at(0), 1, &[update(1), update(3)]).is_err());
    }
}
