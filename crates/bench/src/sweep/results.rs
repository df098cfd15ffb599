//! The results of a sweep, and their spread over the repeats. The module `report::sweep` formats them.
//!
//! Invariant: a point's median, minimum and maximum are computed from exactly the measurements that runs.csv lists.

use super::plan::{SweepPlan, SweepTurn};
use super::run::Figures;
use std::time::SystemTime;

/// A measurement, or the reason why it has no figures.
#[derive(Clone, Debug)]
pub struct Run {
    /// The measurement in the plan.
    pub turn: SweepTurn,
    /// When the measurement began.
    pub started: SystemTime,
    /// The figures, or the reason why there are none.
    pub outcome: Result<Figures, String>,
}

/// The results of a sweep.
#[derive(Clone, Debug)]
pub struct Results {
    /// The plan of the sweep.
    pub plan: SweepPlan,
    /// The measurements, in the order of measuring.
    pub runs: Vec<Run>,
    /// True if the user ended the sweep early.
    pub interrupted: bool,
}

/// A figure that reports show.
pub struct Metric {
    /// The name of the figure's column in files.
    pub column: &'static str,
    /// The name of the figure for people.
    pub title: &'static str,
    /// The unit of the figure.
    pub unit: &'static str,
    /// True if a larger value is better.
    pub more_is_better: bool,
    /// The function that reads the figure from a measurement. Its result is `None` if the figure is unknown.
    pub of: fn(&Figures) -> Option<f64>,
}

const fn latency(column: &'static str, title: &'static str, of: fn(&Figures) -> Option<f64>) -> Metric {
    Metric { column, title, unit: "ms", more_is_better: false, of }
}

/// Returns the description of a cause, a figure that explains throughput and latency.
const fn cause(
    column: &'static str,
    title: &'static str,
    unit: &'static str,
    of: fn(&Figures) -> Option<f64>,
) -> Metric {
    Metric { column, title, unit, more_is_better: false, of }
}

/// All figures, in the order of columns.
pub static METRICS: [Metric; 13] = [
    Metric {
        column: "records_per_sec",
        title: "Throughput",
        unit: "records/s",
        more_is_better: true,
        of: |figures| Some(figures.records_per_sec()),
    },
    Metric {
        column: "mb_per_sec",
        title: "Throughput",
        unit: "MB/s",
        more_is_better: true,
        of: |figures| Some(figures.mb_per_sec()),
    },
    latency("avg_ms", "Mean latency", |figures| Some(figures.avg_us / 1e3)),
    latency("p50_ms", "p50 latency", |figures| Some(figures.percentiles.p50_us as f64 / 1e3)),
    latency("p95_ms", "p95 latency", |figures| Some(figures.percentiles.p95_us as f64 / 1e3)),
    latency("p99_ms", "p99 latency", |figures| Some(figures.percentiles.p99_us as f64 / 1e3)),
    latency("p999_ms", "p99.9 latency", |figures| Some(figures.percentiles.p999_us as f64 / 1e3)),
    latency("max_ms", "Max latency", |figures| Some(figures.percentiles.max_us as f64 / 1e3)),
    cause("batch_bytes", "Mean batch", "bytes", |figures| figures.causes.batch_bytes),
    cause("requests_in_flight", "Mean in flight", "requests", |figures| figures.causes.requests_in_flight),
    cause("window_batches", "Window", "batches", |figures| figures.causes.window_batches),
    cause("client_cores", "Client CPU", "cores", |figures| figures.causes.client_cores),
    cause("broker_cores", "Broker CPU", "cores", |figures| figures.causes.broker_cores),
];

/// The index of each figure in [`METRICS`].
pub mod metric {
    /// The records per second.
    pub const RECORDS_PER_SEC: usize = 0;
    /// The megabytes (10^6 bytes) per second.
    pub const MB_PER_SEC: usize = 1;
    /// The mean latency.
    pub const AVG: usize = 2;
    /// The median latency.
    pub const P50: usize = 3;
    /// The 95th percentile.
    pub const P95: usize = 4;
    /// The 99th percentile.
    pub const P99: usize = 5;
    /// The 99.9th percentile.
    pub const P999: usize = 6;
    /// The maximum latency.
    pub const MAX: usize = 7;
    /// The mean size of a batch, in bytes.
    pub const BATCH_BYTES: usize = 8;
    /// The mean number of requests without a response.
    pub const REQUESTS_IN_FLIGHT: usize = 9;
    /// How many batches of a partition may be unacknowledged.
    pub const WINDOW_BATCHES: usize = 10;
    /// How many processors the client kept busy.
    pub const CLIENT_CORES: usize = 11;
    /// How many processors the brokers kept busy.
    pub const BROKER_CORES: usize = 12;
}

/// The spread of a figure over the repeats of a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The smallest value.
    pub min: f64,
    /// The middle value, or the mean of the two in the middle.
    pub median: f64,
    /// The largest value.
    pub max: f64,
}

impl Spread {
    /// Returns the spread of some values, or `None` if there are none.
    pub fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        Some(Spread { min, median, max })
    }
}

/// The results of a point of one target, over all repeats.
#[derive(Clone, Debug)]
pub struct PointResult {
    /// For each axis, the index of the point's value.
    pub point: Vec<usize>,
    /// The index in [`SweepPlan::targets`].
    pub target: usize,
    /// How many measurements have figures.
    pub runs: usize,
    /// The spread of each of [`METRICS`], or `None` if nothing was measured.
    pub spreads: [Option<Spread>; METRICS.len()],
    /// True if a measurement ended with unacknowledged records.
    pub cut_short: bool,
    /// The first error, if there was one.
    pub error: Option<String>,
}

impl PointResult {
    /// Returns the median of one of [`METRICS`], or `None` if nothing was measured.
    pub fn median(&self, metric: usize) -> Option<f64> {
        self.spreads[metric].map(|spread| spread.median)
    }
}

impl Results {
    /// Returns the results of every point of every target, in the order of the plan. Leaves out points that were not
    /// measured yet. Merges points with the same settings into the first of them.
    pub fn points(&self) -> Vec<PointResult> {
        let (points, same) = (self.plan.points(), self.plan.same());
        let targets = self.plan.targets.len();
        let firsts = (0..points.len()).filter(|point| same[*point] == *point);
        let all = firsts.flat_map(|point| (0..targets).map(move |target| (point, target)));
        all.filter_map(|(point, target)| self.point(&points[point], &same, point, target)).collect()
    }

    fn point(&self, values: &[usize], same: &[usize], point: usize, target: usize) -> Option<PointResult> {
        let is_its = |run: &&Run| (same[run.turn.point], run.turn.target) == (point, target);
        let runs: Vec<&Run> = self.runs.iter().filter(is_its).collect();
        let figures: Vec<&Figures> = runs.iter().filter_map(|run| run.outcome.as_ref().ok()).collect();
        let spread = |metric: usize| {
            let of = METRICS[metric].of;
            Spread::of(figures.iter().filter_map(|figures| of(figures)).collect())
        };
        runs.first()?;
        Some(PointResult {
            point: values.to_vec(),
            target,
            runs: figures.len(),
            spreads: std::array::from_fn(spread),
            cut_short: figures.iter().any(|figures| figures.cut_short),
            error: runs.iter().find_map(|run| run.outcome.as_ref().err().cloned()),
        })
    }

    /// Returns each point's throughput as a share of the best point's. Only points with the same record size, number of
    /// records, rate and link are compared.
    pub fn ratios_to_best(&self, points: &[PointResult]) -> Vec<Option<f64>> {
        let circumstances = |point: &PointResult| -> Vec<usize> {
            let axes = self.plan.axes.iter().zip(&point.point);
            axes.filter(|(axis, _)| axis.setting.is_circumstance()).map(|(_, value)| *value).collect()
        };
        let rate = |point: &PointResult| point.median(metric::RECORDS_PER_SEC);
        let ratio = |point: &PointResult| {
            let given = circumstances(point);
            let rivals = points.iter().filter(|rival| circumstances(rival) == given);
            let best = rivals.filter_map(rate).fold(0.0, f64::max);
            rate(point).filter(|_| best > 0.0).map(|rate| rate / best)
        };
        points.iter().map(ratio).collect()
    }

    /// Returns, for each point, its throughput divided by the throughput of the first target at that point. The points
    /// of the first target get `None`.
    pub fn ratios_to_first(&self, points: &[PointResult]) -> Vec<Option<f64>> {
        let rate = |point: &PointResult| point.median(metric::RECORDS_PER_SEC);
        let ratio = |point: &PointResult| {
            let first = points.iter().find(|first| first.target == 0 && first.point == point.point)?;
            let base = rate(first).filter(|base| point.target != 0 && *base > 0.0)?;
            Some(rate(point)? / base)
        };
        points.iter().map(ratio).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::causes::Causes;
    use super::super::plan::tests::plan;
    use super::*;
    use crate::measure::Latencies;
    use std::time::Duration;

    pub(crate) fn figures(records: u64, elapsed_ms: u64, latency_us: u64) -> Figures {
        let mut latencies = Latencies::default();
        latencies.record(latency_us, records);
        Figures {
            records,
            bytes: records * 100,
            elapsed: Duration::from_millis(elapsed_ms),
            avg_us: latencies.mean_us(),
            percentiles: latencies.percentiles(),
            causes: Causes {
                batch_bytes: Some(1_000.0 + records as f64),
                requests_in_flight: Some(2.5),
                window_batches: Some(5.0),
                client_cores: Some(0.25),
                broker_cores: None,
            },
            cut_short: false,
        }
    }

    /// Returns two repeats of 2 x 2 points on two targets. The last point of the first target was refused.
    pub(crate) fn results() -> Results {
        let plan = plan(&["max.in.flight=1,5", "record-size=64,1024"], &["kafka", "full<bore>"], 2);
        let run = |turn: SweepTurn| {
            let speed = 1_000 * (turn.point as u64 + 1) * (turn.target as u64 + 1) + 10 * u64::from(turn.repeat);
            let refused = (turn.point, turn.target) == (3, 0);
            let outcome = if refused { Err("it was <refused>".to_owned()) } else { Ok(figures(speed, 1_000, speed)) };
            Run { turn, started: SystemTime::UNIX_EPOCH, outcome }
        };
        Results { runs: plan.turns().into_iter().map(run).collect(), plan, interrupted: false }
    }

    #[test]
    fn the_spread_of_repeats() {
        assert_eq!(Spread::of(vec![]), None);
        assert_eq!(Spread::of(vec![3.0, 1.0, 2.0]), Some(Spread { min: 1.0, median: 2.0, max: 3.0 }));
        assert_eq!(Spread::of(vec![4.0, 1.0]), Some(Spread { min: 1.0, median: 2.5, max: 4.0 }));
    }

    #[test]
    fn a_point_has_the_figures_of_its_repeats() {
        let points = results().points();
        assert_eq!(points.len(), 8);
        let rates: Vec<Option<f64>> = points.iter().map(|point| point.median(metric::RECORDS_PER_SEC)).collect();
        let expected = [1_005.0, 2_005.0, 2_005.0, 4_005.0, 3_005.0, 6_005.0, 0.0, 8_005.0];
        assert_eq!(rates, expected.map(|rate| (rate > 0.0).then_some(rate)));
        assert_eq!((points[6].runs, points[6].error.as_deref()), (0, Some("it was <refused>")));
        let spread = points[0].spreads[metric::RECORDS_PER_SEC].expect("measured");
        assert_eq!((spread.min, spread.max), (1_000.0, 1_010.0));
    }

    #[test]
    fn the_best_point_is_among_those_with_the_same_work() {
        let results = results();
        let points = results.points();
        let ratios: Vec<Option<String>> =
            results.ratios_to_best(&points).iter().map(|ratio| ratio.map(|ratio| format!("{ratio:.2}"))).collect();
        let expected = ["0.25", "0.50", "0.50", "1.00", "0.38", "0.75", "", "1.00"];
        assert_eq!(ratios, expected.map(|ratio| (!ratio.is_empty()).then(|| ratio.to_owned())));
    }

    #[test]
    fn targets_are_compared_point_by_point() {
        let results = results();
        let points = results.points();
        let ratios: Vec<Option<String>> =
            results.ratios_to_first(&points).iter().map(|ratio| ratio.map(|ratio| format!("{ratio:.2}"))).collect();
        let expected = [None, Some("2.00"), None, Some("2.00"), None, Some("2.00"), None, None];
        assert_eq!(ratios, expected.map(|ratio| ratio.map(str::to_owned)));
    }

    #[test]
    fn settings_measured_twice_are_one_point_with_the_runs_of_both() {
        let plan = plan(&["acks=all,-1,1"], &["a"], 2);
        let run = |turn: SweepTurn| {
            let outcome = Ok(figures(1_000 * (turn.point as u64 + 1), 1_000, 5));
            Run { turn, started: SystemTime::UNIX_EPOCH, outcome }
        };
        let results = Results { runs: plan.turns().into_iter().map(run).collect(), plan, interrupted: false };
        let points: Vec<(usize, usize)> = results.points().iter().map(|point| (point.point[0], point.runs)).collect();
        assert_eq!(points, [(0, 4), (2, 2)]);
        assert_eq!(results.points()[0].median(metric::RECORDS_PER_SEC), Some(1_500.0));
    }

    #[test]
    fn points_that_were_never_begun_are_left_out() {
        let mut results = results();
        results.runs.truncate(3);
        assert_eq!(results.points().len(), 3);
    }
}
