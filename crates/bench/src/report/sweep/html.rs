//! Writes a sweep as one self-contained page, which loads no script, font, image or other file.
//!
//! Invariant: all text from outside (names, values, errors, facts) goes through [`escape`], and every figure equals the
//! one in points.csv.

use super::chart::{COLOURS, Chart, DASHES, Scale, Series, mark};
use super::escape::escape;
use super::finding::finding;
use super::tradeoff::{self, Tradeoff};
use super::{About, grouped, number, ratio};
use crate::sweep::{Amount, METRICS, PointResult, Results, Setting, metric};
use std::fmt::Write;

const STYLE: &str = include_str!("style.css");
/// The figures that are plotted against the first axis, in this order.
const PLOTTED: [usize; 5] = [metric::RECORDS_PER_SEC, metric::MB_PER_SEC, metric::P50, metric::P95, metric::P99];
/// The latencies that are plotted. Their plots have the same scale.
const PLOTTED_LATENCIES: [usize; 3] = [metric::P50, metric::P95, metric::P99];
/// The figures whose columns follow throughput and its spread in the table of points.
const LATENCIES: [usize; 6] = [metric::AVG, metric::P50, metric::P95, metric::P99, metric::P999, metric::MAX];

/// The figures that explain throughput and latency. Their columns come after the latencies.
const CAUSES: [usize; 5] = [
    metric::BATCH_BYTES,
    metric::REQUESTS_IN_FLIGHT,
    metric::WINDOW_BATCHES,
    metric::CLIENT_CORES,
    metric::BROKER_CORES,
];
/// The number of columns between the column `runs` and the column `of best`.
const FIGURES: usize = 4 + LATENCIES.len() + CAUSES.len();

/// Returns the page.
pub fn page(about: &About, results: &Results) -> String {
    let points = results.points();
    let title = escape(&about.title);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    let found = finding(results, &points);
    if !found.is_empty() {
        let _ = writeln!(out, "<p class=\"finding\">{}</p>", escape(&found));
    }
    if !about.lead.is_empty() {
        let _ = writeln!(out, "<p>{}</p>", escape(&about.lead));
    }
    let (done, all) = (results.runs.len(), results.plan.turns().len());
    if results.interrupted {
        let _ = writeln!(
            out,
            "<p class=\"warn\">Interrupted after {done} of {all} measurements; this is what there is.</p>"
        );
    }
    curves(results, &points, &mut out);
    table(results, &points, &mut out);
    method(results, &points, &mut out);
    out.push_str("<h2>Where and how</h2>\n<div class=\"wide\"><table class=\"facts\">\n");
    for (name, value) in &about.facts {
        let _ = writeln!(out, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(value));
    }
    out.push_str("</table></div>\n</body>\n</html>\n");
    out
}

/// Writes a row of plots for each figure, with one plot for each value of the other axes. A plot has the first axis at
/// the bottom, and a curve for each value of the second axis and each target. The last row plots latency against
/// throughput.
fn curves(results: &Results, points: &[PointResult], out: &mut String) {
    let axes = &results.plan.axes;
    let sizes_differ = axes.iter().any(|axis| axis.setting == Setting::RecordSize);
    let mut plots: Vec<&[usize]> = points.iter().map(|point| point.point.get(2..).unwrap_or_default()).collect();
    plots.sort_unstable();
    plots.dedup();
    // If all points have the same record size, megabytes and records per second have the same curve, so only one is
    // plotted.
    let shown = PLOTTED.into_iter().filter(|index| *index != metric::MB_PER_SEC || sizes_differ);
    let mut rows: Vec<(String, Vec<String>)> = shown
        .map(|index| {
            let scale = scale(points, index);
            let title = title(METRICS[index].title, METRICS[index].unit, &scale);
            let chart = |rest: &&[usize]| Chart {
                heading: heading(results, points, rest, &title, plots.len() == 1),
                x_name: axes[0].name(),
                x: &axes[0].values,
                unit: METRICS[index].unit,
                scale: &scale,
                series: series(results, points, rest, index),
            };
            let charts = plots.iter().map(|rest| chart(rest).svg()).collect();
            (title, charts)
        })
        .collect();
    let (rates, latencies) = (scale(points, metric::RECORDS_PER_SEC), scale(points, metric::P99));
    let title = title("p99 latency over throughput", "ms", &latencies);
    let plot = |rest: &&[usize]| {
        let heading = heading(results, points, rest, &title, plots.len() == 1);
        tradeoff::svg(&heading, METRICS[metric::P99].title, &rates, &latencies, &tradeoffs(results, points, rest))
    };
    let plotted = plots.iter().map(plot).collect();
    rows.push((title, plotted));
    if plots.len() == 1 {
        rows = vec![("Curves".to_owned(), rows.into_iter().flat_map(|(_, charts)| charts).collect())];
    }
    for (at, (title, charts)) in rows.iter().enumerate() {
        let _ = writeln!(out, "<h2>{title}</h2>");
        if at == 0 {
            let _ = writeln!(out, "<p class=\"soft\">{}</p>", marks(results.plan.repeats));
        }
        legend(results, out);
        let _ = writeln!(out, "<div class=\"charts\" style=\"--columns: {}\">", columns(charts.len()));
        for chart in charts {
            let _ = writeln!(out, "{chart}");
        }
        out.push_str("</div>\n");
    }
}

/// Returns a sentence that explains a plot's marks: each is one run, or the median of several runs.
fn marks(repeats: u32) -> String {
    match repeats {
        1 => "Each mark is one run.".to_owned(),
        _ => format!("Each mark is the median of {repeats} runs, and its bar spans the least and the most."),
    }
}

/// Returns the number of plots per row. Avoids, if possible, a last row with a single plot.
fn columns(plots: usize) -> usize {
    match plots {
        0..=3 => plots.max(1),
        _ => [3, 2, 4].into_iter().find(|columns| plots % columns != 1).unwrap_or(3),
    }
}

/// Returns the scale of a figure. All plotted latencies share one scale.
fn scale(points: &[PointResult], index: usize) -> Scale {
    let is_latency = PLOTTED_LATENCIES.contains(&index);
    let shared: &[usize] = if is_latency { &PLOTTED_LATENCIES } else { &[index] };
    let spreads = points.iter().flat_map(|point| shared.iter().filter_map(move |index| point.spreads[*index]));
    Scale::of(spreads.flat_map(|spread| [spread.min, spread.max]))
}

fn title(title: &str, unit: &str, scale: &Scale) -> String {
    format!("{title}, {unit}{}", if scale.log { ", logarithmic" } else { "" })
}

/// Returns the heading of a plot: the values `rest` of the third and later axes, and a note if some marks are single
/// runs. If `is_alone`, the plot is the only one of its figure, and the heading begins with `title`.
fn heading(results: &Results, points: &[PointResult], rest: &[usize], title: &str, is_alone: bool) -> String {
    let named = results.plan.axes.iter().skip(2).zip(rest);
    let values = named.map(|(axis, value)| format!("{}={}", axis.name(), axis.values[*value]));
    let title = is_alone.then(|| title.to_owned());
    let parts = title.into_iter().chain(values).chain(single_runs(points, rest).map(str::to_owned));
    parts.collect::<Vec<_>>().join(", ")
}

/// Returns a note if some marks of a plot are single runs, which have no bar for the spread. Otherwise returns `None`.
fn single_runs(points: &[PointResult], rest: &[usize]) -> Option<&'static str> {
    let mut runs = points
        .iter()
        .filter(|point| point.runs > 0 && point.point.get(2..).unwrap_or_default() == rest)
        .map(|point| point.runs == 1);
    let first = runs.next()?;
    match (first, runs.any(|single| single != first)) {
        (_, true) => Some("marks without an interval are one run"),
        (true, false) => Some("one run"),
        (false, false) => None,
    }
}

/// Returns the curves of one plot of latency against throughput.
fn tradeoffs(results: &Results, points: &[PointResult], rest: &[usize]) -> Vec<Tradeoff> {
    let (rates, latencies) =
        (series(results, points, rest, metric::RECORDS_PER_SEC), series(results, points, rest, metric::P99));
    let axis = &results.plan.axes[0];
    let curve = |(rate, latency): (Series, Series)| {
        let value = |at: usize| {
            let name = format!("{}={}", axis.name(), axis.values[at]);
            let name = if rate.label.is_empty() { name } else { format!("{}, {name}", rate.label) };
            Some((name, rate.points[at]?.median, latency.points[at]?.median))
        };
        Tradeoff { looks: (rate.colour, rate.dash, rate.mark), points: (0..axis.values.len()).map(value).collect() }
    };
    rates.into_iter().zip(latencies).map(curve).collect()
}

/// Returns the curves of one plot.
fn series(results: &Results, points: &[PointResult], rest: &[usize], index: usize) -> Vec<Series> {
    let axes = &results.plan.axes;
    let seconds = axes.get(1).map_or(1, |axis| axis.values.len());
    let mut all = Vec::new();
    for second in 0..seconds {
        for target in 0..results.plan.targets.len() {
            let at = |first: usize| {
                let wanted = |point: &&PointResult| {
                    point.target == target
                        && point.point[0] == first
                        && point.point.get(1).is_none_or(|value| *value == second)
                        && point.point.get(2..).unwrap_or_default() == rest
                };
                points.iter().find(wanted).and_then(|point| point.spreads[index])
            };
            let looks = looks(results, second, target);
            all.push(Series { points: (0..axes[0].values.len()).map(at).collect(), ..looks });
        }
    }
    all
}

/// Returns a curve without points. Its colour shows the value of the second axis and its dash the target. Without a
/// second axis the colour shows the target.
fn looks(results: &Results, second: usize, target: usize) -> Series {
    let several_targets = results.plan.targets.len() > 1;
    let axis = results.plan.axes.get(1).filter(|axis| axis.values.len() > 1 || !several_targets);
    let value = axis.map(|axis| format!("{}={}", axis.name(), axis.values[second]));
    let name = several_targets.then(|| results.plan.targets[target].name.clone());
    let label = name.into_iter().chain(value).collect::<Vec<_>>().join(", ");
    match axis {
        Some(_) if several_targets => Series { label, colour: second, dash: target, mark: target, points: Vec::new() },
        Some(_) => Series { label, colour: second, dash: 0, mark: second, points: Vec::new() },
        None => Series { label, colour: target, dash: 0, mark: target, points: Vec::new() },
    }
}

fn legend(results: &Results, out: &mut String) {
    let seconds = results.plan.axes.get(1).map_or(1, |axis| axis.values.len());
    let all = (0..seconds).flat_map(|second| (0..results.plan.targets.len()).map(move |target| (second, target)));
    let all: Vec<Series> = all.map(|(second, target)| looks(results, second, target)).collect();
    if all.iter().all(|series| series.label.is_empty()) {
        return;
    }
    out.push_str("<ul class=\"legend\">");
    for series in all {
        let _ = write!(
            out,
            "<li class=\"c{}\"><svg viewBox=\"0 0 34 12\" aria-hidden=\"true\"><path class=\"curve\" stroke-dasharray=\"{}\" \
             d=\"M0 6H34\"/><path class=\"mark\" d=\"{}\"/></svg><span>{}</span></li>",
            series.colour % COLOURS,
            DASHES[series.dash % DASHES.len()],
            mark(series.mark, 17.0, 6.0),
            escape(&series.label)
        );
    }
    out.push_str("</ul>\n");
}

fn table(results: &Results, points: &[PointResult], out: &mut String) {
    let several = results.plan.targets.len() > 1;
    out.push_str("<h2>Every point</h2>\n<div class=\"wide\"><table id=\"points\">\n<thead><tr>");
    for axis in &results.plan.axes {
        let _ = write!(out, "<th class=\"v\">{}</th>", escape(&axis.name()));
    }
    out.push_str("<th class=\"v\">target</th><th>runs</th><th>records/s</th><th>least</th><th>most</th><th>MB/s</th>");
    for index in LATENCIES.into_iter().chain(CAUSES) {
        let (title, unit) = (METRICS[index].title.trim_end_matches(" latency"), METRICS[index].unit);
        let _ = write!(out, "<th>{title}<br>{unit}</th>");
    }
    out.push_str("<th>of best</th>");
    if several {
        let _ = write!(out, "<th>&times; {}</th>", escape(&results.plan.targets[0].name));
    }
    if points.iter().any(|point| point.cut_short) {
        out.push_str("<th></th>");
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    let (to_best, to_first) = (results.ratios_to_best(points), results.ratios_to_first(points));
    for (i, point) in points.iter().enumerate() {
        row(results, point, to_best[i], to_first[i], out);
    }
    out.push_str("</tbody></table></div>\n");
}

fn row(results: &Results, point: &PointResult, to_best: Option<f64>, to_first: Option<f64>, out: &mut String) {
    let several = results.plan.targets.len() > 1;
    out.push_str("<tr>");
    for (axis, value) in results.plan.axes.iter().zip(&point.point) {
        let _ = write!(out, "<td class=\"v\">{}</td>", escape(&axis.values[*value]));
    }
    let target = escape(&results.plan.targets[point.target].name);
    let _ = write!(out, "<td class=\"v\">{target}</td><td>{}</td>", point.runs);
    let Some(rate) = point.spreads[metric::RECORDS_PER_SEC] else {
        let columns = FIGURES + 1 + usize::from(several);
        let error = point.error.as_deref().unwrap_or("not measured");
        let _ = writeln!(out, "<td class=\"error\" colspan=\"{columns}\">{}</td></tr>", escape(error));
        return;
    };
    let others = std::iter::once(metric::MB_PER_SEC).chain(LATENCIES).chain(CAUSES);
    let others = others.map(|index| point.median(index).map(number));
    let cells = [rate.median, rate.min, rate.max].map(|value| Some(number(value))).into_iter().chain(others);
    for cell in cells {
        let _ = write!(out, "<td>{}</td>", cell.map(|digits| grouped(&digits)).unwrap_or_default());
    }
    let best = to_best.is_some_and(|part| part == 1.0);
    let class = if best { " class=\"best\"" } else { "" };
    let _ = write!(out, "<td{class}>{}</td>", to_best.map(ratio).unwrap_or_default());
    if several {
        let _ = write!(out, "<td>{}</td>", to_first.map(ratio).unwrap_or_default());
    }
    if point.cut_short {
        out.push_str("<td class=\"v\">cut short</td>");
    }
    out.push_str("</tr>\n");
    // Some repeats have figures, but others have an error.
    if let Some(error) = &point.error {
        let (before, columns) = (results.plan.axes.len() + 2, FIGURES + 1 + usize::from(several));
        let _ = writeln!(
            out,
            "<tr><td colspan=\"{before}\"></td><td class=\"error\" colspan=\"{columns}\">{}</td></tr>",
            escape(&format!("in another repeat: {error}"))
        );
    }
}

/// Explains the figures.
fn method(results: &Results, points: &[PointResult], out: &mut String) {
    let plan = &results.plan;
    let amount = match plan.amount {
        Amount::Time(time) => format!("sends for {} ms", grouped(&time.as_millis().to_string())),
        Amount::Records(records) => format!("sends {} records", grouped(&records.to_string())),
    };
    let amount = match plan.axes.iter().any(|axis| axis.setting == Setting::Records) {
        true => "sends the number of records that the point names".to_owned(),
        false => amount,
    };
    let (done, all) = (results.runs.len(), plan.turns().len());
    let repeats = match plan.repeats {
        _ if results.interrupted => format!(
            "Each point was to be measured {}, but only {done} of {all} measurements were made; a figure is the median of \
             those there are.",
            if plan.repeats == 1 { "once".to_owned() } else { format!("{} times", plan.repeats) }
        ),
        1 => "Each point was measured once.".to_owned(),
        times => format!(
            "Each point was measured {times} times, every second time in the opposite order; a figure is the median, \
             and the bars in the plots span the least and the most."
        ),
    };
    let warmup = match plan.warmup.is_zero() {
        true => "There was no warm-up.".to_owned(),
        false => format!(
            "Before that the same producer sends for about {} ms to the same topic, in rounds that are all \
             acknowledged; no figure includes this warm-up.",
            grouped(&plan.warmup.as_millis().to_string())
        ),
    };
    out.push_str("<h2>What the figures mean</h2>\n");
    let _ = writeln!(out, "<p>{repeats} A measurement has a topic of its own and {amount}. {warmup}</p>");
    out.push_str(
        "<p>Throughput is acknowledged records, divided by the time from the first send to the last acknowledgement; a \
         megabyte is 1,000,000 bytes of values. Latency is from the time when a record was due to its acknowledgement. At \
         a rate (throughput above 0) a record is due at its time in the schedule, otherwise when the producer gets it, so \
         the wait in the producer&rsquo;s buffer counts. &ldquo;Of best&rdquo; is the throughput as a part of the best \
         among the points with the same record size, rate and link.</p>\n",
    );
    out.push_str(
        "<p>Figures that explain these: a batch counts with its bytes on the wire, and requests in flight are the mean of \
         the measurement. The window is the number of batches of a partition that may be unacknowledged, as the broker \
         last reported it. A core is one processor that is always busy: the client&rsquo;s run the producer and the code \
         that fills it, and the brokers&rsquo; run the processes that listen at their addresses on this machine.</p>\n",
    );
    if plan.same().iter().enumerate().any(|(at, first)| at != *first) {
        out.push_str("<p>Values with the same meaning share the row of the first one, with the runs of all.</p>\n");
    }
    let is_far = |point: &Vec<usize>| plan.setup(point).is_ok_and(|setup| !setup.link.is_direct());
    if plan.points().iter().any(is_far) {
        out.push_str(
            "<p>The link (rtt, bandwidth) is a relay between the producer and each broker. It delays every byte by half \
             the round trip, but each side's TCP is local: what a TCP window or a lost packet costs on a real link is not \
             in these figures.</p>\n",
        );
    }
    if points.iter().any(|point| point.cut_short) {
        out.push_str(
            "<p>In measurements that were cut short, some records were not acknowledged when the time was over. No figure \
             includes these records, so the latencies of such measurements are too low.</p>\n",
        );
    }
    let _ = writeln!(
        out,
        "<p class=\"soft\">Beside this page: points.csv (the numbers shown here), runs.csv (each measurement), sweep.json \
         (both).</p>"
    );
}

#[cfg(test)]
mod tests {
    use super::super::csv;
    use super::*;
    use crate::sweep::sample_results;

    fn about() -> About {
        let facts = vec![("Command".to_owned(), "fullbore perf sweep --note '<script>alert(1)</script>'".to_owned())];
        About { title: "A <title>".to_owned(), lead: "a & b".to_owned(), facts }
    }

    /// Returns the cells of each row of the table of points, without tags and without the commas of thousands.
    fn rows(page: &str) -> Vec<Vec<String>> {
        let body =
            page.split("<table id=\"points\">").nth(1).and_then(|rest| rest.split("<tbody>").nth(1)).expect("a table");
        let body = body.split("</tbody>").next().expect("it ends");
        let cells = |row: &str| {
            let cells = row.split("<td").skip(1).map(|cell| cell.split_once('>').expect("a tag ends").1);
            cells.map(|cell| cell.split("</td>").next().unwrap_or_default().replace(',', "")).collect::<Vec<_>>()
        };
        body.split("<tr>").skip(1).map(cells).collect()
    }

    #[test]
    fn the_pages_numbers_are_those_of_the_csv() {
        let results = sample_results();
        let (page, csv) = (page(&about(), &results), csv::points(&results));
        let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let header = lines.next().expect("a header");
        let column = |name: &str| header.iter().position(|found| *found == name).unwrap_or_else(|| panic!("{name}"));
        let shown = [
            "max.in.flight",
            "record-size",
            "target",
            "runs",
            "records_per_sec",
            "records_per_sec_min",
            "records_per_sec_max",
            "mb_per_sec",
            "avg_ms",
            "p50_ms",
            "p95_ms",
            "p99_ms",
            "p999_ms",
            "max_ms",
            "batch_bytes",
            "requests_in_flight",
            "window_batches",
            "client_cores",
            "broker_cores",
            "ratio_to_best",
            "ratio_to_first_target",
        ];
        let rows = rows(&page);
        assert_eq!(rows.len(), 8);
        for (row, line) in rows.iter().zip(lines) {
            let expected: Vec<String> = shown.iter().map(|name| escape(line[column(name)])).collect();
            match line[column("error")] {
                "" => assert_eq!(row, &expected),
                error => assert_eq!(row.last(), Some(&escape(error))),
            }
            // The plots show the numbers of the table.
            let expected = format!(": {} records/s", grouped(line[column("records_per_sec")]));
            assert!(line[column("records_per_sec")].is_empty() || page.contains(&expected), "{expected}");
        }
    }

    #[test]
    fn nothing_from_outside_is_markup_and_nothing_is_loaded() {
        let page = page(&about(), &sample_results());
        assert!(!page.contains("<script") && !page.contains("full<bore>") && !page.contains("A <title>"), "{page}");
        for loads in ["http:", "https:", "src=", "href=", "@import", "url("] {
            assert!(!page.contains(loads), "{loads}");
        }
    }

    #[test]
    fn each_figure_has_a_plot_with_every_curve() {
        let page = page(&about(), &sample_results());
        assert_eq!(page.matches("<figure>").count(), 6, "records, megabytes, p50, p95, p99, p99 over records");
        assert_eq!(page.matches("<li class=").count(), 4, "two record sizes on two targets");
        // The broker refused 1 of 8 points, so 7 have marks.
        assert_eq!(page.matches("class=\"mark\"").count(), 6 * 7 + 4);
        assert!(page.contains("Each mark is the median of 2 runs") && page.contains("<p class=\"finding\">"), "{page}");
    }

    #[test]
    fn plots_stand_in_rows_none_is_alone_in_the_last() {
        assert_eq!([1, 2, 3, 4, 5, 6, 7, 8].map(columns), [1, 2, 3, 2, 3, 3, 4, 3]);
    }

    #[test]
    fn only_a_plot_of_single_runs_has_a_note() {
        let mut results = sample_results();
        let page_of = |results: &Results| page(&about(), results);
        assert!(!page_of(&results).contains("one run"));
        results.runs.truncate(9);
        assert_eq!(page_of(&results).matches("marks without an interval are one run</figcaption>").count(), 6);
        results.runs.truncate(4);
        assert_eq!(page_of(&results).matches("one run</figcaption>").count(), 6);
    }

    #[test]
    fn latencies_are_drawn_they_share_a_scale() {
        let points = sample_results().points();
        let [p50, p95, p99] = PLOTTED_LATENCIES.map(|index| scale(&points, index).ticks());
        assert!(p50 == p95 && p95 == p99, "{p50:?} {p95:?} {p99:?}");
    }

    #[test]
    fn a_point_that_was_cut_short_is_marked() {
        let mut results = sample_results();
        assert!(!page(&about(), &results).contains("cut short"));
        results.runs[0].outcome.as_mut().expect("measured").cut_short = true;
        let page = page(&about(), &results);
        assert_eq!(rows(&page).iter().filter(|row| row.last().is_some_and(|cell| cell == "cut short")).count(), 1);
        assert!(page.contains("In measurements that were cut short"));
    }

    #[test]
    fn an_interrupted_sweep_is_marked() {
        let mut results = sample_results();
        results.runs.truncate(3);
        results.interrupted = true;
        let page = page(&about(), &results);
        assert!(page.contains("Interrupted after 3 of 16 measurements"));
        assert!(page.contains("but only 3 of 16 measurements were made") && !page.contains("was measured"), "{page}");
    }
}
