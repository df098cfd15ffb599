//! Numbers as Java's `Formatter` prints them, so that scripts which read Kafka's tools read ours.

/// `%.<digits>f`.
pub(super) fn fixed(value: f64, digits: usize) -> String {
    if value.is_nan() {
        "NaN".into()
    } else if value.is_infinite() {
        if value > 0.0 { "Infinity".into() } else { "-Infinity".into() }
    } else {
        format!("{value:.digits$}")
    }
}

/// Bytes in the tools' megabytes, which are 2^20.
pub(super) fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::fixed;

    #[test]
    fn as_java_prints_them() {
        assert_eq!(fixed(29_837.386_245_4, 6), "29837.386245");
        assert_eq!(fixed(f64::NAN, 2), "NaN");
        assert_eq!(fixed(f64::INFINITY, 4), "Infinity");
        assert_eq!(fixed(f64::NEG_INFINITY, 4), "-Infinity");
    }
}
