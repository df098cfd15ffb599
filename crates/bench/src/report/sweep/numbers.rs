//! Formats figures.

/// Formats a figure with at least three significant digits, without a unit.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Formats a ratio with two decimals.
pub fn ratio(value: f64) -> String {
    format!("{value:.2}")
}

/// Returns the digits of a number with commas between thousands.
pub fn grouped(digits: &str) -> String {
    let (whole, rest) = digits.split_at(digits.find('.').unwrap_or(digits.len()));
    let (sign, whole) = whole.split_at(usize::from(whole.starts_with('-')));
    let groups: Vec<&str> = whole.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    format!("{sign}{}{rest}", groups.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_the_digits_that_matter() {
        let numbers = [0.0, 0.0874, 1.0, 12.34, 99.96, 123.6, 404_225.3].map(number);
        assert_eq!(numbers, ["0.000", "0.087", "1.00", "12.3", "100.0", "124", "404225"]);
        assert_eq!(
            ["404225", "12.3", "1234567.25", "-1234", "0"].map(grouped),
            ["404,225", "12.3", "1,234,567.25", "-1,234", "0"]
        );
    }
}
