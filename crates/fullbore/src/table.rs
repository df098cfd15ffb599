//! Tables in the form of Kafka's tools. Columns are left-aligned, and each is at least as wide as Kafka's.

use crate::output::{heading, name};

/// The width to which a cell may be shortened.
const CUT_TO: usize = 8;
/// The text at the end of a cell that was shortened.
const DOTS: &str = "...";

/// Returns the lines of a table, whose first row is the heading. `widths` has the minimum widths of the first columns.
/// Lines have no trailing blanks. Control characters in cells are escaped.
pub fn aligned(rows: &[Vec<String>], widths: &[usize]) -> Vec<String> {
    let rows = &escaped(rows);
    let widths = columns(rows, widths);
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

/// Returns the lines of a table like [`aligned`], but fitted into `limit` columns. If the table is too wide, first
/// ignores the minimum widths. Then it shortens the widest cells of text, and finally it removes columns from the
/// right.
pub fn fitted(rows: &[Vec<String>], widths: &[usize], limit: Option<usize>) -> Vec<String> {
    let lines = aligned(rows, widths);
    let mut rows = escaped(rows);
    let Some(limit) = limit.filter(|limit| rows_width(&rows, widths) > *limit) else { return lines };
    while rows_width(&rows, &[]) > limit {
        let over = rows_width(&rows, &[]) - limit;
        let widest = columns(&rows, &[]).into_iter().enumerate().filter(|(column, _)| is_text(&rows, *column));
        match widest.max_by_key(|(_, width)| *width).filter(|(_, width)| *width > CUT_TO) {
            Some((column, width)) => cut(&mut rows, column, CUT_TO.max(width.saturating_sub(over))),
            None if rows.iter().any(|row| row.len() > 1) => rows.iter_mut().for_each(|row| drop(row.pop())),
            None => break,
        }
    }
    aligned(&rows, &[])
}

fn escaped(rows: &[Vec<String>]) -> Vec<Vec<String>> {
    rows.iter().map(|row| row.iter().map(|cell| name(cell).into_owned()).collect()).collect()
}

/// Returns true if the column has a cell, other than its heading, that is not a number.
fn is_text(rows: &[Vec<String>], column: usize) -> bool {
    let cells = rows.iter().skip(1).filter_map(|row| row.get(column));
    cells.into_iter().any(|cell| cell != "-" && cell.parse::<i64>().is_err())
}

fn cut(rows: &mut [Vec<String>], column: usize, width: usize) {
    for cell in rows.iter_mut().filter_map(|row| row.get_mut(column)).filter(|cell| cell.chars().count() > width) {
        *cell = cell.chars().take(width - DOTS.len()).chain(DOTS.chars()).collect();
    }
}

fn rows_width(rows: &[Vec<String>], widths: &[usize]) -> usize {
    let mut all = columns(rows, widths);
    // The last column is not padded.
    if let Some(last) = all.last_mut() {
        *last = columns(rows, &[]).pop().unwrap_or_default();
    }
    all.iter().sum::<usize>() + all.len().saturating_sub(1)
}

/// Returns the width of each column, which is never less than the one in `widths`.
fn columns(rows: &[Vec<String>], widths: &[usize]) -> Vec<usize> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0).max(widths.get(column).copied().unwrap_or(0))
    };
    (0..rows.iter().map(Vec::len).max().unwrap_or(0)).map(width).collect()
}

/// Returns a row of a table with these cells.
pub fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// Returns a cell with the value. `None` becomes a dash, as in Kafka's tools.
pub fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_wider_than_its_terminal_has_text_cut_but_no_numbers() {
        let id = "perf-consumer-client-7d9d2b56-0a5b-4c39";
        let rows = [row(["GROUP", "OFFSET", "CONSUMER-ID", "HOST"]), row(["g", "1234567", id, "/127.0.0.1"])];
        let widths = [15, 15, 15];
        let width = |lines: Vec<String>| lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
        assert_eq!(fitted(&rows, &widths, None), aligned(&rows, &widths));
        assert_eq!(fitted(&rows, &widths, Some(200)), aligned(&rows, &widths));
        let cut = fitted(&rows, &widths, Some(50));
        assert_eq!(cut[1], "g     1234567 perf-consumer-client-7... /127.0.0.1");
        assert_eq!(width(cut), 50);
        assert_eq!(fitted(&rows, &widths, Some(24))[1], "g     1234567 perf-...");
    }

    #[test]
    fn control_characters_of_cells_are_escaped_before_columns_are_aligned() {
        let rows = [row(["GROUP", "LAG"]), row(["a\x1b[2J\nb", "5"])];
        let lines = ["GROUP         LAG", r"a\x1b[2J\x0ab 5"];
        assert_eq!(aligned(&rows, &[]), lines);
        assert_eq!(fitted(&rows, &[], Some(80)), lines);
    }

    #[test]
    fn columns_are_as_wide_as_kafkas_or_their_widest_cell() {
        let rows = [row(["GROUP", "TOPIC", "LAG"]), row(["a-long-group", "t", "5"])];
        assert_eq!(aligned(&rows, &[5, 8]), ["GROUP        TOPIC    LAG", "a-long-group t        5"]);
    }
}
