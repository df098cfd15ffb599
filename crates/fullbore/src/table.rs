//! Tables as Kafka's tools print them: columns to the left, each at least as wide as Kafka has it.

use crate::output::heading;

/// The lines of a table: the first row is its heading. `widths` are the least widths, columns beyond them have none. No
/// line ends with blanks.
pub fn aligned(rows: &[Vec<String>], widths: &[usize]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0).max(widths.get(column).copied().unwrap_or(0))
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join(" ").trim_end().to_owned()
    };
    let mut lines: Vec<String> = rows.iter().map(line).collect();
    if let Some(first) = lines.first_mut() {
        *first = heading(first);
    }
    lines
}

/// A row of a table.
pub fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// A cell that may be empty, as Kafka's tools show it.
pub fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_kafkas_or_their_widest_cell() {
        let rows = [row(["GROUP", "TOPIC", "LAG"]), row(["a-long-group", "t", "5"])];
        assert_eq!(aligned(&rows, &[5, 8]), ["GROUP        TOPIC    LAG", "a-long-group t        5"]);
    }
}
