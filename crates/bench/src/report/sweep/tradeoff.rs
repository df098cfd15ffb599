//! Plots latency against throughput as inline SVG. The position of a point of the sweep is its records per second and
//! its latency.
//!
//! Invariant: text from outside is escaped, and the tooltip of a point shows the same numbers as the tables.

use super::chart::{BOTTOM, COLOURS, DASHES, HEIGHT, LEFT, RIGHT, Scale, TOP, WIDTH, mark, short};
use super::escape::escape;
use super::{grouped, number};
use std::fmt::Write;

/// A curve with its points, in the order of the first axis' values.
pub struct Tradeoff {
    /// The indexes of the curve's colour, dash pattern and mark, as in the other plots.
    pub looks: (usize, usize, usize),
    /// The name, records per second and latency in milliseconds of each value. `None` if nothing was measured there.
    pub points: Vec<Option<(String, f64, f64)>>,
}

/// Returns the plot as an HTML element. `rates` is the scale of the horizontal axis, and `latencies` that of the
/// vertical one.
pub fn svg(heading: &str, latency: &str, rates: &Scale, latencies: &Scale, curves: &[Tradeoff]) -> String {
    let floor = HEIGHT - BOTTOM;
    let x = |rate: f64| LEFT + rates.height(rate) * (WIDTH - LEFT - RIGHT);
    let y = |time: f64| floor - latencies.height(time) * (floor - TOP);
    let mut out = format!(
        "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{} over records/s\">",
        escape(heading),
        escape(latency)
    );
    for tick in latencies.ticks() {
        let (line, right) = (y(tick), WIDTH - RIGHT);
        let (before, below, tick) = (LEFT - 5.0, line + 4.0, short(tick));
        let _ = write!(out, "<path class=\"grid\" d=\"M{LEFT} {line:.1}H{right}\"/>");
        let _ = write!(out, "<text x=\"{before:.1}\" y=\"{below:.1}\" text-anchor=\"end\">{tick}</text>");
    }
    for tick in rates.ticks() {
        let (at, below, tick) = (x(tick), floor + 15.0, short(tick));
        let _ = write!(out, "<text x=\"{at:.1}\" y=\"{below:.1}\" text-anchor=\"middle\">{tick}</text>");
    }
    let (middle, bottom) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 6.0);
    let _ =
        write!(out, "<text class=\"name\" x=\"{middle:.1}\" y=\"{bottom:.1}\" text-anchor=\"middle\">records/s</text>");
    for curve in curves {
        draw(curve, &x, &y, &mut out);
    }
    out + "</svg></figure>"
}

fn draw(curve: &Tradeoff, x: &dyn Fn(f64) -> f64, y: &dyn Fn(f64) -> f64, out: &mut String) {
    let (colour, dash, kind) = curve.looks;
    let mut path = String::new();
    for (_, rate, time) in curve.points.iter().flatten() {
        let _ = write!(path, "{}{:.1} {:.1}", if path.is_empty() { 'M' } else { 'L' }, x(*rate), y(*time));
    }
    let (colour, dash) = (colour % COLOURS, DASHES[dash % DASHES.len()]);
    let _ = write!(out, "<g class=\"c{colour}\"><path class=\"curve\" stroke-dasharray=\"{dash}\" d=\"{path}\"/>");
    for (name, rate, time) in curve.points.iter().flatten() {
        let title = format!("{name}: {} records/s, {} ms", grouped(&number(*rate)), grouped(&number(*time)));
        let shape = mark(kind, x(*rate), y(*time));
        let _ = write!(out, "<path class=\"mark\" d=\"{shape}\"><title>{}</title></path>", escape(&title));
    }
    out.push_str("</g>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn point_is_faster_and_later_it_stands_further_right_and_higher() {
        let point = |rate, time| Some(("<n>".to_owned(), rate, time));
        let curves = [Tradeoff { looks: (9, 0, 1), points: vec![point(100.0, 1.0), None, point(400.0, 2.0)] }];
        let (rates, latencies) = (Scale::of([400.0].into_iter()), Scale::of([2.0].into_iter()));
        let svg = svg("h", "p99 latency, ms", &rates, &latencies, &curves);
        let path = svg.split("stroke-dasharray=\"none\" d=\"").nth(1).and_then(|rest| rest.split('"').next());
        let numbers: Vec<f64> =
            path.expect("a curve").split(['M', 'L', ' ']).filter_map(|number| number.parse().ok()).collect();
        assert!(numbers[2] > numbers[0] && numbers[3] < numbers[1], "{numbers:?}");
        assert!(
            svg.contains("<title>&lt;n&gt;: 400 records/s, 2.00 ms</title>") && svg.contains("class=\"c1\""),
            "{svg}"
        );
    }
}
