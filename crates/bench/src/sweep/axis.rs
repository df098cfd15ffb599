//! An axis of a sweep: a setting and the values that one `--over` lists. Invariant: an axis has at least one value, and
//! no value twice.

use super::point::Setup;
use super::setting::Setting;

/// Maximum number of values of one axis.
const VALUES_MAX: usize = 64;

/// A setting and its values, in the order they were typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// The setting that varies.
    pub setting: Setting,
    /// The values, at least one. No value occurs twice.
    pub values: Vec<String>,
}

impl Axis {
    /// Parses `NAME=VALUE,VALUE,...`.
    ///
    /// # Errors
    /// Returns a message with the reason why `typed` is not an axis, and the allowed form.
    pub fn parse(typed: &str) -> Result<Axis, String> {
        let (name, values) = typed.split_once('=').ok_or_else(shape)?;
        let setting = Setting::parse(name)?;
        let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
        if values.iter().any(String::is_empty) {
            return Err(format!("{} has an empty value; write {}=VALUE,VALUE,...", setting.name(), setting.name()));
        }
        if values.len() > VALUES_MAX {
            return Err(format!("{} has {} values; at most {VALUES_MAX}", setting.name(), values.len()));
        }
        if let Some(twice) = values.iter().enumerate().find(|(i, value)| values[..*i].contains(value)) {
            return Err(format!("{}={} is named twice", setting.name(), twice.1));
        }
        if setting.is_secret() {
            return Err(format!(
                "{} is secret, but a report shows the values of --over; put the setting into the file of \
                 --command-config",
                setting.name()
            ));
        }
        for value in &values {
            Setup::check(&setting, value)?;
        }
        Ok(Axis { setting, values })
    }

    /// Returns the axis's name in reports and files.
    pub fn name(&self) -> String {
        self.setting.name()
    }
}

/// Parses `NAME=VALUE`, a setting that is the same for every point.
///
/// # Errors
/// Returns a message with the reason why `typed` is not a setting with a value, and the allowed form.
pub fn fixed(typed: &str) -> Result<(Setting, String), String> {
    let (name, value) = typed.split_once('=').ok_or("must be NAME=VALUE")?;
    let setting = Setting::parse(name)?;
    let value = value.trim().to_owned();
    Setup::check(&setting, &value)?;
    Ok((setting, value))
}

fn shape() -> String {
    "must be NAME=VALUE,VALUE,... as in max.in.flight=1,2,5".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_keeps_the_order_of_its_values() {
        let axis = Axis::parse("max.in.flight=5, 1,auto").expect("valid");
        assert_eq!((axis.name().as_str(), axis.values), ("max.in.flight", ["5", "1", "auto"].map(String::from).into()));
    }

    #[test]
    fn bad_axes_are_refused_with_the_allowed_form() {
        let many: Vec<String> = (1..=65).map(|n| n.to_string()).collect();
        for (typed, reported) in [
            ("acks", "must be NAME=VALUE,VALUE,..."),
            ("acks=", "has an empty value"),
            ("acks=1,,all", "has an empty value"),
            ("acks=1,all,1", "acks=1 is named twice"),
            ("record-size=64,x", "record-size=x: must be a whole number from 1"),
            ("partitions=0", "partitions=0: must be a whole number from 1"),
            ("rtt=-5", "rtt=-5: must be "),
            ("bandwidth=fast", "bandwidth=fast: must be a rate with its unit"),
            ("throughput=0", "throughput=0: must be records a second"),
            ("akcs=1", "did you mean acks?"),
            (&format!("batch.size={}", many.join(",")), "65 values; at most 64"),
        ] {
            let refusal = Axis::parse(typed).expect_err(typed);
            assert!(refusal.contains(reported), "{typed}: {refusal}");
        }
    }

    #[test]
    fn a_fixed_value_may_hold_commas() {
        assert_eq!(
            fixed("client-dns=x").map_err(|reported| reported.contains("not a setting that can vary")),
            Err(true)
        );
        let (setting, value) = fixed("topic.leader.throttled.replicas=0:1,1:2").expect("valid");
        assert_eq!((setting.name().as_str(), value.as_str()), ("topic.leader.throttled.replicas", "0:1,1:2"));
    }
}
