//! Formats numbers as Java's `Formatter` does, so that scripts which read Kafka's tools can read ours.

/// Formats a number like `%.<digits>f`.
pub(super) fn fixed(value: f64, digits: usize) -> String {
    if value.is_nan() {
        "NaN".into()
    } else if value.is_infinite() {
        if value > 0.0 { "Infinity".into() } else { "-Infinity".into() }
    } else {
        format!("{value:.digits$}")
    }
}

/// Formats a rate like [`fixed`]. If `kafkas` is false, a rate of four digits or more gets no decimals. Kafka's tool
/// (`kafkas`) always prints them.
pub(super) fn rate(value: f64, digits: usize, kafkas: bool) -> String {
    let is_long = !kafkas && value.abs() >= 999.5;
    fixed(value, if is_long { 0 } else { digits })
}

/// Converts bytes into the tools' megabytes, which have 2^20 bytes.
pub(super) fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::{fixed, rate};

    #[test]
    fn rate_has_four_digits_decimals_are_left_out() {
        let shown = |kafkas| [29_837.386_245_4, 999.4, 999.95, f64::INFINITY].map(|value| rate(value, 1, kafkas));
        assert_eq!(shown(false), ["29837", "999.4", "1000", "Infinity"]);
        assert_eq!(shown(true), ["29837.4", "999.4", "1000.0", "Infinity"]);
    }

    #[test]
    fn as_java_prints_them() {
        assert_eq!(fixed(29_837.386_245_4, 6), "29837.386245");
        assert_eq!(fixed(f64::NAN, 2), "NaN");
        assert_eq!(fixed(f64::INFINITY, 4), "Infinity");
        assert_eq!(fixed(f64::NEG_INFINITY, 4), "-Infinity");
    }
}
