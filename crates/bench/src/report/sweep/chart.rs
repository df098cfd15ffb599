//! A plot as inline SVG. The horizontal axis shows the values of the sweep's first axis. A curve has a point and its
//! spread for each value. The style sheet of the page defines the colours.
//!
//! Neighbouring values have the same distance, because some are words and not numbers. A word among numbers, such as
//! `auto`, gets a point that no line connects to the others. Invariant: text from outside is escaped, and the tooltip
//! of a point shows the same numbers as the tables.

use super::escape::escape;
use super::{grouped, number};
use crate::sweep::Spread;
use std::fmt::Write;

pub(super) const WIDTH: f64 = 340.0;
pub(super) const HEIGHT: f64 = 220.0;
pub(super) const LEFT: f64 = 46.0;
pub(super) const RIGHT: f64 = 10.0;
pub(super) const TOP: f64 = 12.0;
/// The height of the area at the bottom for the values and the axis' name.
pub(super) const BOTTOM: f64 = 40.0;
/// The height of this area if the values must be rotated to fit.
const BOTTOM_TURNED: f64 = 66.0;
/// The approximate width of a letter.
const LETTER: f64 = 6.2;
/// The ratio of the largest to the smallest value above which a plot is logarithmic. A linear plot would draw the
/// smallest value on its horizontal axis.
const LOG_RATIO: f64 = 30.0;
/// Maximum number of marks on a logarithmic axis, unless each is a power of ten.
const TICKS_MAX: usize = 7;
/// The dashes of the curves, one for each target. If there are more targets, they use the dashes again.
pub const DASHES: [&str; 4] = ["none", "6 3", "2 3", "8 3 2 3"];
/// The number of colours. If there are more curves, they use the colours again.
pub const COLOURS: usize = 8;

/// A curve of a plot.
pub struct Series {
    /// The text in the legend.
    pub label: String,
    /// The index of the colour.
    pub colour: usize,
    /// The index of the dash pattern.
    pub dash: usize,
    /// The index of the shape of the points' marks.
    pub mark: usize,
    /// The point at each value of the horizontal axis. `None` if nothing was measured there.
    pub points: Vec<Option<Spread>>,
}

/// A plot with its curves.
pub struct Chart<'a> {
    /// The heading above the plot, which may be empty.
    pub heading: String,
    /// The name of the horizontal axis.
    pub x_name: String,
    /// The values of the horizontal axis.
    pub x: &'a [String],
    /// The unit of the figures.
    pub unit: &'static str,
    /// The scale of the figures. All plots of a figure share it, and so do all latencies, so that a reader can compare
    /// plots.
    pub scale: &'a Scale,
    /// The curves of the plot.
    pub series: Vec<Series>,
}

/// The vertical axis.
pub struct Scale {
    /// True if the axis is logarithmic.
    pub log: bool,
    low: f64,
    high: f64,
}

impl Scale {
    /// Returns an axis from zero to above the largest of these values. If the values differ much, returns a logarithmic
    /// axis around them.
    pub fn of(values: impl Iterator<Item = f64>) -> Scale {
        let (mut least, mut most) = (f64::MAX, 0f64);
        for value in values.filter(|value| value.is_finite() && *value > 0.0) {
            (least, most) = (least.min(value), most.max(value));
        }
        if most == 0.0 {
            return Scale { log: false, low: 0.0, high: 1.0 };
        }
        if most / least > LOG_RATIO {
            return Scale { log: true, low: round_down(least), high: round_up(most) };
        }
        let step = step(most);
        Scale { log: false, low: 0.0, high: (most / step).ceil() * step }
    }

    /// Returns the values at which the axis has tick marks.
    pub(super) fn ticks(&self) -> Vec<f64> {
        if self.log {
            let mut ticks = vec![self.low];
            while ticks.last().is_some_and(|last| *last < self.high * 0.999) {
                ticks.push(round_up(ticks[ticks.len() - 1] * 1.001));
            }
            // If the axis spans many decades, only the marks at powers of ten are kept.
            if ticks.len() > TICKS_MAX {
                ticks.retain(|tick| (tick.log10() - tick.log10().round()).abs() < 1e-6);
            }
            return ticks;
        }
        let step = step(self.high);
        (0..=(self.high / step).round() as u32).map(|tick| f64::from(tick) * step).collect()
    }

    /// Returns the position of a value on the axis, from 0 at the bottom to 1 at the top.
    pub(super) fn height(&self, value: f64) -> f64 {
        let part = match self.log {
            true => (value.max(self.low) / self.low).log10() / (self.high / self.low).log10(),
            false => value / self.high,
        };
        part.clamp(0.0, 1.0)
    }
}

/// Returns the largest of 1, 2, 5, 10, 20, ... that is not above a value.
fn round_down(value: f64) -> f64 {
    let decade = 10f64.powf(value.log10().floor());
    [5.0, 2.0].into_iter().map(|digit| digit * decade).find(|round| *round <= value * 1.000_001).unwrap_or(decade)
}

/// Returns the smallest of 1, 2, 5, 10, 20, ... that is not below a value.
fn round_up(value: f64) -> f64 {
    let decade = 10f64.powf(value.log10().floor());
    let rounds = [1.0, 2.0, 5.0].into_iter().map(|digit| digit * decade);
    rounds.into_iter().find(|round| *round >= value * 0.999_999).unwrap_or(decade * 10.0)
}

/// Returns a round step that gives about four marks up to `most`.
fn step(most: f64) -> f64 {
    let raw = most / 4.0;
    let decade = 10f64.powf(raw.log10().floor());
    let round = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|round| round * decade >= raw * 0.999);
    round.unwrap_or(10.0) * decade
}

/// Formats a number for an axis, for example 250k, 1.5M, or 0.05.
pub(super) fn short(value: f64) -> String {
    let (value, suffix) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = format!("{value:.3}");
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{digits}{suffix}")
}

impl Chart<'_> {
    /// Returns the plot as an HTML element.
    pub fn svg(&self) -> String {
        let slot = (WIDTH - LEFT - RIGHT) / self.x.len().max(1) as f64;
        let longest = self.x.iter().map(|value| value.chars().count()).max().unwrap_or(0);
        let turned = longest as f64 * LETTER > slot;
        let floor = HEIGHT - if turned { BOTTOM_TURNED } else { BOTTOM };
        let at = |i: usize| LEFT + (i as f64 + 0.5) * slot;
        let y = |value: f64| floor - self.scale.height(value) * (floor - TOP);
        let mut out = format!(
            "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{} over {} {}\">",
            escape(&self.heading),
            escape(self.unit),
            escape(&self.x_name),
            escape(&self.heading)
        );
        for tick in self.scale.ticks() {
            let (line, right) = (y(tick), WIDTH - RIGHT);
            let _ = write!(
                out,
                "<path class=\"grid\" d=\"M{LEFT} {line:.1}H{right}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 5.0,
                line + 4.0,
                short(tick)
            );
        }
        for (i, value) in self.x.iter().enumerate() {
            let (x, y) = (at(i), floor + 15.0);
            let place = match turned {
                true => {
                    format!("x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"end\" transform=\"rotate(-40 {x:.1} {y:.1})\"")
                }
                false => format!("x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\""),
            };
            let _ = write!(out, "<text {place}>{}</text>", escape(value));
        }
        let _ = write!(
            out,
            "<text class=\"name\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 6.0,
            escape(&self.x_name)
        );
        for i in (1..self.x.len()).filter(|i| self.is_apart(*i) || self.is_apart(i - 1)) {
            let _ = write!(
                out,
                "<path class=\"grid\" stroke-dasharray=\"2 3\" d=\"M{:.1} {TOP}V{floor}\"/>",
                at(i) - slot / 2.0
            );
        }
        for series in &self.series {
            self.curve(series, &at, &y, &mut out);
        }
        out + "</svg></figure>"
    }

    fn curve(&self, series: &Series, at: &dyn Fn(usize) -> f64, y: &dyn Fn(f64) -> f64, out: &mut String) {
        let (colour, dash) = (series.colour % COLOURS, DASHES[series.dash % DASHES.len()]);
        let mut path = String::new();
        let mut begun = false;
        for (i, point) in series.points.iter().enumerate() {
            // No line connects to a value that was not measured, or to a word among numbers.
            let Some(spread) = point else {
                begun = false;
                continue;
            };
            begun &= !self.is_apart(i);
            let _ = write!(path, "{}{:.1} {:.1}", if begun { 'L' } else { 'M' }, at(i), y(spread.median));
            begun = !self.is_apart(i);
        }
        let _ = write!(out, "<g class=\"c{colour}\"><path class=\"curve\" stroke-dasharray=\"{dash}\" d=\"{path}\"/>");
        for (i, spread) in series.points.iter().enumerate().filter_map(|(i, point)| Some((i, (*point)?))) {
            if spread.max > spread.min {
                let _ = write!(
                    out,
                    "<path class=\"spread\" d=\"M{:.1} {:.1}V{:.1}\"/>",
                    at(i),
                    y(spread.min),
                    y(spread.max)
                );
            }
            let title = format!("{}: {} {}", self.title(series, i), grouped(&number(spread.median)), self.unit);
            let spread_text = format!(" ({} to {})", grouped(&number(spread.min)), grouped(&number(spread.max)));
            let _ = write!(
                out,
                "<path class=\"mark\" d=\"{}\"><title>{}{}</title></path>",
                mark(series.mark, at(i), y(spread.median)),
                escape(&title),
                if spread.max > spread.min { &spread_text } else { "" }
            );
        }
        out.push_str("</g>");
    }

    /// Returns true if value `i` is a word and other values are numbers.
    fn is_apart(&self, i: usize) -> bool {
        let is_number = |value: &String| value.starts_with(|letter: char| letter.is_ascii_digit());
        !is_number(&self.x[i]) && self.x.iter().any(is_number)
    }

    fn title(&self, series: &Series, i: usize) -> String {
        let x = format!("{}={}", self.x_name, self.x[i]);
        if series.label.is_empty() { x } else { format!("{}, {x}", series.label) }
    }
}

/// Returns a circle, a square, a triangle or a diamond around a point.
pub fn mark(kind: usize, x: f64, y: f64) -> String {
    match kind % 4 {
        0 => format!("M{:.1} {y:.1}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z", x - 3.5),
        1 => format!("M{:.1} {:.1}h6.4v6.4h-6.4z", x - 3.2, y - 3.2),
        2 => format!("M{x:.1} {:.1}l4.2 7.2h-8.4z", y - 4.6),
        _ => format!("M{x:.1} {:.1}l4.4 4.4l-4.4 4.4l-4.4 -4.4z", y - 4.4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_starts_at_zero_unless_the_values_differ_much() {
        let linear = Scale::of([100.0, 430.0].into_iter());
        assert!(!linear.log);
        assert_eq!((linear.ticks(), linear.height(0.0)), (vec![0.0, 200.0, 400.0, 600.0], 0.0));
        let log = Scale::of([0.2, 150.0].into_iter());
        assert!(log.log);
        let shown: Vec<String> = log.ticks().into_iter().map(short).collect();
        assert_eq!(shown, ["1", "10", "100"], "from 0.2 to 200");
        assert!((log.height(0.2), log.height(200.0)) == (0.0, 1.0) && (log.height(6.324_555) - 0.5).abs() < 1e-6);
        let narrow = Scale::of([20.0, 800.0].into_iter()).ticks().into_iter().map(short).collect::<Vec<_>>();
        assert_eq!(narrow, ["20", "50", "100", "200", "500", "1k"]);
        assert_eq!(Scale::of(std::iter::empty()).ticks().len(), 5);
    }

    #[test]
    fn numbers_on_an_axis_are_short() {
        assert_eq!([0.0, 0.05, 2.5, 1_000.0, 2_500_000.0, 5e9].map(short), ["0", "0.05", "2.5", "1k", "2.5M", "5G"]);
    }

    #[test]
    fn a_curve_has_marks_at_measured_values_and_gaps_elsewhere() {
        let spread = |median: f64| Some(Spread { min: median * 0.9, median, max: median * 1.1 });
        let series = Series {
            label: "<b>".to_owned(),
            colour: 9,
            dash: 1,
            mark: 0,
            points: vec![spread(1234.0), None, spread(200.0)],
        };
        let x = ["1", "a&b", "auto"].map(str::to_owned);
        let scale = Scale::of([2000.0].into_iter());
        let chart = Chart {
            heading: "h".to_owned(),
            x_name: "n".to_owned(),
            x: &x,
            unit: "ms",
            scale: &scale,
            series: vec![series],
        };
        let svg = chart.svg();
        assert_eq!(svg.matches("class=\"mark\"").count(), 2);
        let path =
            svg.split("stroke-dasharray=\"6 3\" d=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a path");
        assert_eq!((path.matches('M').count(), path.matches('L').count()), (2, 0), "{path}");
        assert!(svg.contains("<title>&lt;b&gt;, n=1: 1,234 ms (1,111 to 1,357)</title>"), "{svg}");
        assert!(svg.contains("a&amp;b") && svg.contains("class=\"c1\""), "{svg}");
    }

    #[test]
    fn word_stands_among_numbers_curve_goes_around_it() {
        let curves = |x: &[&str]| {
            let x: Vec<String> = x.iter().map(|value| (*value).to_owned()).collect();
            let points = vec![Some(Spread { min: 5.0, median: 5.0, max: 5.0 }); x.len()];
            let series = vec![Series { label: String::new(), colour: 0, dash: 0, mark: 0, points }];
            let scale = Scale::of([5.0].into_iter());
            let chart =
                Chart { heading: String::new(), x_name: "n".to_owned(), x: &x, unit: "ms", scale: &scale, series };
            let svg = chart.svg();
            let path = svg.split("class=\"curve\" stroke-dasharray=\"none\" d=\"").nth(1).expect("a curve");
            let path = path.split('"').next().expect("it ends");
            (path.matches('M').count(), path.matches('L').count(), svg.matches("stroke-dasharray=\"2 3\"").count())
        };
        assert_eq!(curves(&["1", "5", "auto"]), (2, 1, 1));
        assert_eq!(curves(&["auto", "1", "5ms"]), (2, 1, 1));
        assert_eq!(curves(&["none", "lz4"]), (1, 1, 0), "words alone are one curve");
    }
}
