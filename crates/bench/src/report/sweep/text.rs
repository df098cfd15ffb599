//! Writes a sweep as text for a terminal or a document. Scripts should read the files instead.

use super::{grouped, number, ratio};
use crate::report::table;
use crate::sweep::tables::TableLayout;
use crate::sweep::{METRICS, PointResult, Results, metric};

/// The content of a table cell without a figure. The report shows the reason below the table.
const NO_FIGURE: &str = "error";

/// Returns one row for each point, with throughput and its spread, latencies, and ratios to other points.
pub fn points(results: &Results) -> String {
    let points = results.points();
    let (to_best, to_first) = (results.ratios_to_best(&points), results.ratios_to_first(&points));
    let (several, repeated) = (results.plan.targets.len() > 1, results.plan.repeats > 1);
    let mut heading: Vec<String> = results.plan.axes.iter().map(|axis| axis.name()).collect();
    if several {
        heading.insert(0, String::new());
    }
    let columns = ["records/s", "min", "max", "MB/s", "p50 ms", "p95 ms", "p99 ms", "of best"];
    heading.extend(columns.iter().filter(|name| repeated || !name.starts_with('m')).map(|name| (*name).to_owned()));
    if several {
        heading.push(format!("x {}", results.plan.targets[0].name));
    }
    let row = |(i, point): (usize, &PointResult)| {
        let values = results.plan.axes.iter().zip(&point.point);
        let mut row: Vec<String> = values.map(|(axis, value)| axis.values[*value].clone()).collect();
        if several {
            row.insert(0, results.plan.targets[point.target].name.clone());
        }
        let Some(rate) = point.spreads[metric::RECORDS_PER_SEC] else {
            row.push(NO_FIGURE.to_owned());
            return row;
        };
        let shown = |index: usize| point.median(index).map(number).unwrap_or_default();
        row.push(grouped(&number(rate.median)));
        if repeated {
            row.extend([rate.min, rate.max].map(|value| grouped(&number(value))));
        }
        row.extend([metric::MB_PER_SEC, metric::P50, metric::P95, metric::P99].map(shown));
        row.push(to_best[i].map(ratio).unwrap_or_default());
        if several {
            row.push(to_first[i].map(ratio).unwrap_or_default());
        }
        if point.cut_short {
            row.push("cut short".to_owned());
        }
        row
    };
    let rows: Vec<Vec<String>> = std::iter::once(heading).chain(points.iter().enumerate().map(row)).collect();
    let cut = match points.iter().any(|point| point.cut_short) {
        true => "\n\ncut short: some records were not acknowledged when the time was over; no figure includes them.",
        false => "",
    };
    table(&rows) + cut + &errors(results, &points)
}

/// Returns the reasons why points have no figures, one per line.
fn errors(results: &Results, points: &[PointResult]) -> String {
    let line = |point: &PointResult| {
        let error = point.error.as_deref()?;
        let target = &results.plan.targets[point.target].name;
        Some(format!("{target} {}: {error}", results.plan.label(&point.point)))
    };
    let lines: Vec<String> = points.iter().filter_map(line).collect();
    if lines.is_empty() { String::new() } else { format!("\n\nErrors:\n{}", lines.join("\n")) }
}

/// Returns the results of a ready-made sweep as a table in Markdown, in the layout that its document in docs/ uses.
pub fn ready_made(results: &Results, layout: TableLayout) -> String {
    let table = match layout {
        TableLayout::Rows => rows(results),
        TableLayout::Grids => grids(results),
    };
    table + &errors(results, &results.points())
}

/// Returns tables with a row for each value of the first axis. Each target and each combination of the other axes'
/// values has its own table.
fn rows(results: &Results) -> String {
    let heading = |name: String| {
        let mut heading = vec![name];
        heading.extend(
            [
                "throughput",
                "avg latency",
                "max latency",
                "50th latency",
                "95th latency",
                "99th latency",
                "99.9th latency",
            ]
            .map(str::to_owned),
        );
        heading
    };
    let figures = [metric::AVG, metric::MAX, metric::P50, metric::P95, metric::P99, metric::P999];
    let row = |point: &PointResult| {
        let mut row = vec![results.plan.axes[0].values[point.point[0]].clone()];
        match point.median(metric::RECORDS_PER_SEC) {
            Some(rate) => {
                row.push(format!("{} records/sec", number(rate)));
                row.extend(figures.map(|index| format!("{} ms", point.median(index).map(number).unwrap_or_default())));
            }
            None => {
                row.push(NO_FIGURE.to_owned());
                row.extend(std::iter::repeat_n(String::new(), figures.len()));
            }
        }
        row
    };
    let points = results.points();
    let sections = sections(results, &points, 1);
    let table = |(title, points): &(String, Vec<&PointResult>)| {
        let rows = std::iter::once(heading(results.plan.axes[0].name())).chain(points.iter().map(|point| row(point)));
        format!("{title}{}", markdown(&rows.collect::<Vec<_>>()))
    };
    sections.iter().map(table).collect::<Vec<_>>().join("\n\n")
}

/// Returns a grid for each figure. The rows are the values of the first axis, and the columns those of the second and
/// third axes.
fn grids(results: &Results) -> String {
    let axes = &results.plan.axes;
    let across = axes.len().min(3);
    let points = results.points();
    let mut grids = Vec::new();
    for (title, points) in sections(results, &points, across) {
        let mut columns: Vec<&[usize]> = points.iter().map(|point| &point.point[1..across]).collect();
        columns.sort_unstable();
        columns.dedup();
        let column = |values: &&[usize]| {
            let named = axes[1..across].iter().zip(*values);
            named.map(|(axis, value)| format!("{}={}", axis.name(), axis.values[*value])).collect::<Vec<_>>().join(" ")
        };
        for index in [metric::P95, metric::RECORDS_PER_SEC, metric::P50] {
            let heading = std::iter::once(axes[0].name()).chain(columns.iter().map(column)).collect::<Vec<_>>();
            let cell = |down: usize, values: &[usize]| {
                let point = points.iter().find(|point| point.point[0] == down && &point.point[1..across] == values);
                point.map_or_else(String::new, |point| point.median(index).map_or_else(|| NO_FIGURE.to_owned(), number))
            };
            let row = |down: usize| {
                let cells = columns.iter().map(|values| cell(down, values));
                std::iter::once(axes[0].values[down].clone()).chain(cells).collect::<Vec<_>>()
            };
            let rows: Vec<Vec<String>> = std::iter::once(heading).chain((0..axes[0].values.len()).map(row)).collect();
            grids.push(format!("{title}{}, {}\n\n{}", METRICS[index].title, METRICS[index].unit, markdown(&rows)));
        }
    }
    grids.join("\n\n")
}

/// Groups points by target and by their values on the axes from `first` on, so that each group becomes one table. Each
/// group has a title line, which is empty if there is only one group.
fn sections<'a>(results: &Results, points: &'a [PointResult], first: usize) -> Vec<(String, Vec<&'a PointResult>)> {
    let key = |point: &PointResult| (point.point[first..].to_vec(), point.target);
    let mut keys: Vec<(Vec<usize>, usize)> = points.iter().map(key).collect();
    keys.sort_unstable();
    keys.dedup();
    let title = |(values, target): &(Vec<usize>, usize)| {
        let axes = results.plan.axes[first..].iter().zip(values);
        let mut parts: Vec<String> =
            axes.map(|(axis, value)| format!("{}={}", axis.name(), axis.values[*value])).collect();
        if results.plan.targets.len() > 1 {
            parts.insert(0, results.plan.targets[*target].name.clone());
        }
        if parts.is_empty() { String::new() } else { format!("{}:\n\n", parts.join(" ")) }
    };
    let group = |wanted: &(Vec<usize>, usize)| points.iter().filter(|point| key(point) == *wanted).collect();
    keys.iter().map(|wanted| (title(wanted), group(wanted))).collect()
}

/// Returns a Markdown table with aligned cells. The first column is aligned to the left and the others to the right.
fn markdown(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0).max(3)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        format!("| {} |", cells.collect::<Vec<_>>().join(" | "))
    };
    let rule = widths.iter().enumerate().map(|(column, width)| match column {
        0 => "-".repeat(*width),
        _ => format!("{}:", "-".repeat(width - 1)),
    });
    let rule = format!("| {} |", rule.collect::<Vec<_>>().join(" | "));
    let mut lines: Vec<String> = rows.iter().map(line).collect();
    lines.insert(1.min(lines.len()), rule);
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::sample_results;

    #[test]
    fn a_row_a_point_with_spread_and_ratios() {
        let text = points(&sample_results());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + 8 + 3);
        assert!(lines[0].ends_with("x kafka"), "{text}");
        let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let second = cells(lines[2]);
        assert_eq!(second[..6], ["full<bore>", "1", "64", "2,005", "2,000", "2,010"], "{text}");
        assert_eq!(second.last().map(String::as_str), Some("2.00"));
        assert!(lines[7].ends_with("error"), "{text}");
        assert_eq!(lines[11], "kafka max.in.flight=5 record-size=1024: it was <refused>");
    }

    #[test]
    fn the_rows_of_seed_001() {
        let text = ready_made(&sample_results(), TableLayout::Rows);
        assert!(text.contains("| max.in.flight |"), "{text}");
        assert!(text.contains("| 50th latency |") && text.contains("kafka record-size=64:\n\n"), "{text}");
        assert!(text.contains("1005 records/sec |"), "{text}");
    }

    #[test]
    fn the_grids_of_seed_000() {
        let text = ready_made(&sample_results(), TableLayout::Grids);
        assert!(text.contains("kafka:\n\np95 latency, ms\n\n| max.in.flight | record-size=64 |"), "{text}");
        assert!(text.contains("Throughput, records/s\n\n"), "{text}");
        let widths: Vec<usize> = text.lines().filter(|line| line.starts_with('|')).take(4).map(str::len).collect();
        assert!(widths.windows(2).all(|pair| pair[0] == pair[1]), "{text}");
    }
}
