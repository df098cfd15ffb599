//! A row of the table of keys, and the check of a value against its row.
//!
//! `ConfigReader` can parse every value that has passed [`Key::check`].

use super::error::ConfigError;

/// The type of a value. The number is the type's code in DescribeConfigs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    Boolean = 1,
    String = 2,
    Int = 3,
    Short = 4,
    Long = 5,
    Double = 6,
    List = 7,
    /// The name of a Java class.
    Class = 8,
    /// A secret text, which DescribeConfigs, logs and errors never show.
    Password = 9,
}

/// The place where the value in force was set. The number is the code of Kafka's `ConfigSource`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Set on the topic.
    Topic = 1,
    /// Set while the broker ran, for this broker alone.
    DynamicBroker = 2,
    /// Set while the broker ran, for every broker of the cluster.
    DynamicDefaultBroker = 3,
    /// Set in the broker's properties.
    StaticBroker = 4,
    /// Not set: the value is the default of the table.
    Default = 5,
    /// Set on a logger of the broker, or the logger's initial level.
    DynamicBrokerLogger = 6,
    /// Set on the client metrics subscription.
    ClientMetrics = 7,
    /// Set on the group.
    Group = 8,
}

/// The values that a key accepts, within its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    Any,
    /// A number in this range, both ends included.
    Between(i64, i64),
    /// `-1` for "no limit" or "the system decides", or a number in this range, both ends included.
    MinusOneOr(i64, i64),
    /// Any of these values. A list must have at least one element, and every element must be among these values.
    OneOf(&'static [&'static str]),
    /// A list of some of these values, which may be empty.
    SomeOf(&'static [&'static str]),
    /// A number from 0 to 1.
    Share,
    /// A number above 0.
    Positive,
}

/// Effect that setting a key has on this broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The broker uses the value, or the key accepts only one value.
    Honoured,
    /// The key has no effect, for this reason. In the broker's file it causes a warning. A client that sets it gets an
    /// error, unless the value is the default or the key is dynamic.
    Nothing(&'static str),
    /// The broker refuses every value but the default and an empty list, for this reason. With another value, the user
    /// would rely on a feature that is missing.
    Refused(&'static str),
}

/// A row of the table: a key and everything that is known about it.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    pub name: &'static str,
    pub of: Type,
    pub allowed: Allowed,
    /// The default. With `None`, the key has the value of the first synonym that has one, or no value at all.
    pub default: Option<&'static str>,
    /// Keys whose values apply if this key is not set, in this order. The synonyms of a topic's key are broker keys.
    pub synonyms: &'static [&'static str],
    /// Number of milliseconds in one unit of the value, for keys in hours or minutes; 1 for all other keys.
    pub unit_ms: i64,
    pub doc: &'static str,
    pub effect: Effect,
    /// True if the value may be written in upper or lower case, as in Kafka. The broker stores the value in lower case.
    pub any_case: bool,
    /// True if this broker key may change while the broker runs, for one broker or for all.
    pub dynamic: bool,
    /// True if a topic gets the broker's value only when it is created. If an existing topic has no value for the key,
    /// `default` applies, not the broker's value.
    pub at_creation: bool,
    /// How the key differs from Apache Kafka's, if it does.
    pub differs: Option<&'static str>,
}

const INT_MAX: i64 = i32::MAX as i64;

impl Key {
    pub(super) const fn new(name: &'static str, of: Type, default: Option<&'static str>, doc: &'static str) -> Self {
        Self {
            name,
            of,
            allowed: Allowed::Any,
            default,
            synonyms: &[],
            unit_ms: 1,
            doc,
            effect: Effect::Honoured,
            any_case: false,
            dynamic: false,
            at_creation: false,
            differs: None,
        }
    }

    pub(super) const fn boolean(name: &'static str, default: &'static str, doc: &'static str) -> Self {
        Self::new(name, Type::Boolean, Some(default), doc)
    }

    /// Creates the row of a 32-bit number that is at least `min`.
    pub(super) const fn int(name: &'static str, default: Option<&'static str>, min: i64, doc: &'static str) -> Self {
        Self::new(name, Type::Int, default, doc).allow(Allowed::Between(min, INT_MAX))
    }

    /// Creates the row of a 64-bit number that is at least `min`.
    pub(super) const fn long(name: &'static str, default: Option<&'static str>, min: i64, doc: &'static str) -> Self {
        Self::new(name, Type::Long, default, doc).allow(Allowed::Between(min, i64::MAX))
    }

    pub(super) const fn allow(mut self, allowed: Allowed) -> Self {
        self.allowed = allowed;
        self
    }

    pub(super) const fn or_else(mut self, synonyms: &'static [&'static str]) -> Self {
        self.synonyms = synonyms;
        self
    }

    pub(super) const fn in_units_of_ms(mut self, unit_ms: i64) -> Self {
        self.unit_ms = unit_ms;
        self
    }

    pub(super) const fn any_case(mut self) -> Self {
        self.any_case = true;
        self
    }

    /// Marks a broker key that may change while the broker runs. Kafka calls this update mode "cluster-wide".
    pub(super) const fn dynamic(mut self) -> Self {
        self.dynamic = true;
        self
    }

    /// Marks a topic's key that is copied from the broker's value when the topic is created, and only then.
    pub(super) const fn at_creation(mut self) -> Self {
        self.at_creation = true;
        self
    }

    /// Creates the row of a Kafka key that has no effect here.
    pub(super) const fn without_effect(
        name: &'static str,
        of: Type,
        default: Option<&'static str>,
        allowed: Allowed,
        why: &'static str,
    ) -> Self {
        Self { effect: Effect::Nothing(why), ..Self::new(name, of, default, why).allow(allowed) }
    }

    /// Creates the row of a Kafka key that accepts only its default here.
    pub(super) const fn refused(
        name: &'static str,
        of: Type,
        default: Option<&'static str>,
        allowed: Allowed,
        why: &'static str,
    ) -> Self {
        Self { effect: Effect::Refused(why), ..Self::new(name, of, default, why).allow(allowed) }
    }

    pub(super) const fn differs(mut self, how: &'static str) -> Self {
        self.differs = Some(how);
        self
    }

    /// Returns true if the key accepts only one value. The broker then never reads the key.
    pub fn is_fixed(&self) -> bool {
        match self.allowed {
            Allowed::OneOf(values) => values.len() == 1,
            Allowed::Between(min, max) => min == max,
            _ => false,
        }
    }

    /// Checks a value as typed. Returns it in canonical form, which is trimmed and has booleans in lower case.
    pub fn check(&self, value: &str) -> Result<String, ConfigError> {
        self.check_as(self.name, value)
    }

    /// Checks a value as [`Key::check`] does. An error shows the `name` that the user typed.
    pub(super) fn check_as(&self, name: &str, value: &str) -> Result<String, ConfigError> {
        let trimmed = value.trim();
        let canonical = match self.any_case || self.of == Type::Boolean {
            true => trimmed.to_ascii_lowercase(),
            false => trimmed.to_owned(),
        };
        if self.accepts(&canonical) { Ok(canonical) } else { Err(self.refusal(name, value)) }
    }

    /// Checks a value for which a warning would not be enough, such as one that a client sets. If the key has no effect
    /// here, refuses every value but the default.
    pub(super) fn check_change(&self, value: &str) -> Result<String, ConfigError> {
        let checked = self.check(value)?;
        match self.effect {
            // Clients may set a key whose row is marked as dynamic, although the key has no effect here.
            Effect::Nothing(_) if self.dynamic => Ok(checked),
            // An empty list requests none of the features that this broker lacks.
            Effect::Refused(_) if self.of == Type::List && checked.is_empty() => Ok(checked),
            Effect::Nothing(why) | Effect::Refused(why) if self.default != Some(&*checked) => {
                Err(ConfigError::of_value(self.name, value, why))
            }
            _ => Ok(checked),
        }
    }

    fn accepts(&self, value: &str) -> bool {
        let of_type = match self.of {
            Type::Boolean => value == "true" || value == "false",
            Type::Int => value.parse::<i32>().is_ok(),
            Type::Short => value.parse::<i16>().is_ok(),
            Type::Long => value.parse::<i64>().is_ok(),
            Type::Double => value.parse::<f64>().is_ok_and(f64::is_finite),
            Type::String | Type::List | Type::Class | Type::Password => true,
        };
        let number = || value.parse::<i64>().ok();
        of_type
            && match self.allowed {
                Allowed::Any => true,
                Allowed::Between(min, max) => number().is_some_and(|n| (min..=max).contains(&n)),
                Allowed::MinusOneOr(min, max) => number().is_some_and(|n| n == -1 || (min..=max).contains(&n)),
                Allowed::OneOf(values) if self.of == Type::List => {
                    value.split(',').all(|element| values.contains(&element.trim()))
                }
                Allowed::OneOf(values) => values.contains(&value),
                Allowed::SomeOf(values) => {
                    value.is_empty() || value.split(',').all(|element| values.contains(&element.trim()))
                }
                Allowed::Share => value.parse::<f64>().is_ok_and(|share| (0.0..=1.0).contains(&share)),
                Allowed::Positive => value.parse::<f64>().is_ok_and(|number| number > 0.0),
            }
    }

    fn refusal(&self, name: &str, value: &str) -> ConfigError {
        let allowed = self.allowed_text();
        let mut message = match self.greatest() {
            // The value is too large, and the text of the range shows no maximum, as in `a number of at least 1`. The
            // error must then show the maximum instead.
            Some(greatest) if exceeds(value.trim(), greatest) && !allowed.contains(&greatest.to_string()) => {
                format!("must be at most {greatest}")
            }
            _ => format!("must be {allowed}"),
        };
        if let Some(in_unit) = self.in_unit(value.trim()) {
            message.push_str(&format!("; {} is {in_unit}", value.trim()));
        }
        if let Some(differs) = self.differs.filter(|_| self.is_fixed()) {
            message.push_str(&format!(" (differs from Kafka: {differs})"));
        }
        ConfigError::of_value(name, value, message)
    }

    /// Converts a time with a unit, such as 1h or 30s, to the unit of this key, as a hint in an error. Returns None if
    /// the key is not a time, or if the result is not a whole number.
    fn in_unit(&self, value: &str) -> Option<i64> {
        let unit_ms = (self.unit_ms > 1 || self.name.ends_with(".ms")).then_some(self.unit_ms)?;
        let (number, unit) = value.split_at(value.find(|letter: char| !letter.is_ascii_digit())?);
        let ms = match unit.trim_start() {
            "ms" => 1,
            "s" => 1_000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 604_800_000,
            _ => return None,
        };
        let ms = number.parse::<i64>().ok()?.checked_mul(ms)?;
        (ms % unit_ms == 0).then_some(ms / unit_ms)
    }

    /// Returns the greatest whole number that the key accepts; None if the key is not a whole number.
    fn greatest(&self) -> Option<i64> {
        let of_type = match self.of {
            Type::Int => INT_MAX,
            Type::Short => i64::from(i16::MAX),
            Type::Long => i64::MAX,
            _ => return None,
        };
        match self.allowed {
            Allowed::Between(_, max) | Allowed::MinusOneOr(_, max) => Some(of_type.min(max)),
            _ => Some(of_type),
        }
    }

    /// Describes the accepted values, as in "between 1 and 10" or "true or false".
    pub fn allowed_text(&self) -> String {
        let range = |min: i64, max: i64| match max {
            _ if min == max => min.to_string(),
            i64::MAX => format!("a number of at least {min}"),
            _ => format!("between {min} and {max}"),
        };
        match (self.allowed, self.of) {
            (Allowed::Between(min, max), _) => range(min, max),
            (Allowed::MinusOneOr(min, max), _) => format!("-1 or {}", range(min, max)),
            (Allowed::OneOf(values), _) => {
                let shown: Vec<&str> =
                    values.iter().map(|value| if value.is_empty() { "empty" } else { value }).collect();
                shown.join(" or ")
            }
            (Allowed::SomeOf(values), _) => format!("a list of {}, or empty", values.join(" and ")),
            (Allowed::Share, _) => "a number from 0 to 1".into(),
            (Allowed::Positive, _) => "a number above 0".into(),
            (Allowed::Any, Type::Boolean) => "true or false".into(),
            (Allowed::Any, Type::Int) => range(i64::from(i32::MIN), INT_MAX),
            (Allowed::Any, Type::Short) => range(i64::from(i16::MIN), i64::from(i16::MAX)),
            (Allowed::Any, Type::Long) => "a 64-bit number".into(),
            (Allowed::Any, Type::Double) => "a number".into(),
            (Allowed::Any, Type::Class) => "the name of a Java class".into(),
            (Allowed::Any, Type::String | Type::Password) => "text".into(),
            (Allowed::Any, Type::List) => "a list with commas".into(),
        }
    }
}

/// Returns true if `value` is a whole number above `greatest`, of any length.
fn exceeds(value: &str, greatest: i64) -> bool {
    let digits = value.strip_prefix('+').unwrap_or(value);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number && digits.parse::<i64>().map_or(true, |number| number > greatest)
}
