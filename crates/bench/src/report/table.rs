//! Small aligned tables for people. Scripts should read the tools' lines instead.

/// Returns rows whose columns are padded to their widest cell. The first column is aligned to the left and the others
/// to the right.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn cells_are_aligned() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let text = table(&[row(["", "records/s", "p99"]), row(["produce", "1,000", "2.5 ms"])]);
        assert_eq!(text, "         records/s     p99\nproduce      1,000  2.5 ms");
    }
}
