//! Plans the measurements of a sweep and their order, and finds points whose settings contradict each other.
//!
//! Nothing here connects to a cluster. At each point all targets are measured one after another, and the first axis
//! varies faster than the other axes. Figures that a report shows side by side are thus measured at nearly the same
//! time. Every second repeat measures the points in reverse order. Otherwise a machine that slows down with time would
//! favour the first points. Invariant: each repeat measures every point of every target once.

use super::axis::Axis;
use super::point::Setup;
use super::setting::Setting;
use fullbore_producer::{ConfigError, InFlight};
use std::collections::HashMap;
use std::time::Duration;

/// How many requests in flight the sweep's own broker must allow for a point with max.in.flight=auto. Diskless topics
/// remember the same number of batches of a producer.
const AUTO_IN_FLIGHT: u64 = 128;

/// Maximum number of axes of a sweep.
const AXES_MAX: usize = 8;
/// Maximum number of points of a sweep, over all targets.
pub const POINTS_MAX: usize = 1_000;
/// Maximum number of measurements of each point.
pub const REPEATS_MAX: u32 = 100;
/// The approximate time that a measurement needs besides sending, to create and delete a topic and to open connections.
const OVERHEAD: Duration = Duration::from_millis(200);

/// The condition that ends a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// The measurement ends after sending for this time.
    Time(Duration),
    /// The measurement ends after this number of records.
    Records(u64),
}

/// A cluster to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The name of the cluster in reports.
    pub name: String,
    /// The addresses of the cluster's brokers, as host:port,...
    pub bootstrap_servers: String,
}

/// The plan of a sweep.
#[derive(Clone, Debug)]
pub struct SweepPlan {
    /// The axes. In a plot, the first one is horizontal, and each value of the second one has a curve.
    pub axes: Vec<Axis>,
    /// The settings that are the same for every point.
    pub fixed: Vec<(Setting, String)>,
    /// Producer properties from a file. Every other setting overrides them.
    pub properties: Vec<(String, String)>,
    /// The clusters, of which there is at least one.
    pub targets: Vec<Target>,
    /// The condition that ends each measurement.
    pub amount: Amount,
    /// The approximate duration of the warm-up before each measurement. The figures do not include it.
    pub warmup: Duration,
    /// How often each point is measured.
    pub repeats: u32,
}

/// A planned measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepTurn {
    /// The number of the repeat, counted from 0.
    pub repeat: u32,
    /// The index in [`SweepPlan::points`].
    pub point: usize,
    /// The index in [`SweepPlan::targets`].
    pub target: usize,
}

/// The reason why a plan cannot be carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// There is no axis, so nothing varies.
    #[error("nothing varies; give --over NAME=VALUE,VALUE,... or --table NAME (`--table list` shows the tables)")]
    NoAxes,
    /// There are more axes than a page can show.
    #[error("{0} axes; at most {AXES_MAX}")]
    Axes(usize),
    /// Two axes have the same setting.
    #[error("{0} is in --over twice; give all values in one --over")]
    Twice(String),
    /// There are too many points.
    #[error("{points} points ({product}), the limit is {POINTS_MAX}: leave values out, or sweep over fewer settings")]
    Points {
        /// The number of points.
        points: usize,
        /// The number of points as a product of the axes' sizes, such as `3 x 4 x 2`.
        product: String,
    },
    /// There are too many repeats, or none.
    #[error("--repeats {0}: must be from 1 to {REPEATS_MAX}")]
    Repeats(u32),
    /// The value of a setting is not allowed.
    #[error("{0}")]
    Value(String),
    /// No point can be measured, because each has settings that contradict each other.
    #[error("no point can be measured: {0}")]
    Contradiction(String),
}

impl SweepPlan {
    /// Returns every point as a list that has, for each axis, the index of the point's value. The first axis varies
    /// fastest.
    pub fn points(&self) -> Vec<Vec<usize>> {
        let mut points = vec![Vec::new()];
        for axis in self.axes.iter().rev() {
            points = points
                .into_iter()
                .flat_map(|point| {
                    (0..axis.values.len())
                        .map(move |value| std::iter::once(value).chain(point.iter().copied()).collect())
                })
                .collect();
        }
        points
    }

    /// Returns every measurement in the order of measuring.
    pub fn turns(&self) -> Vec<SweepTurn> {
        let points = self.points().len();
        let mut turns = Vec::new();
        for repeat in 0..self.repeats {
            let all = (0..points).flat_map(|point| (0..self.targets.len()).map(move |target| (point, target)));
            let mut all: Vec<SweepTurn> = all.map(|(point, target)| SweepTurn { repeat, point, target }).collect();
            if repeat % 2 == 1 {
                all.reverse();
            }
            turns.extend(all);
        }
        turns
    }

    /// Returns a point's settings.
    ///
    /// # Errors
    /// Returns an error message if a value is not allowed.
    pub fn setup(&self, point: &[usize]) -> Result<Setup, String> {
        let mut setup = Setup { properties: self.properties.clone(), ..Setup::default() };
        for (setting, value) in &self.fixed {
            setup.set(setting, value)?;
        }
        for (axis, value) in self.axes.iter().zip(point) {
            setup.set(&axis.setting, &axis.values[*value])?;
        }
        Ok(setup)
    }

    /// Returns, for each point, the first point with the same settings, even if they are spelled differently. For most
    /// points, this is the point itself.
    pub fn same(&self) -> Vec<usize> {
        let mut first = HashMap::new();
        let setups = self.points().into_iter().map(|point| self.setup(&point));
        let kept = setups.enumerate().map(|(at, setup)| {
            let Ok(setup) = setup else { return at };
            let Ok(producer) = setup.producer("localhost:9092") else { return at };
            let settings = format!("{producer:?} {:?}", Setup { properties: Vec::new(), ..setup });
            *first.entry(settings).or_insert(at)
        });
        kept.collect()
    }

    /// Returns a point as `name=value name=value`.
    pub fn label(&self, point: &[usize]) -> String {
        let pair = |(axis, value): (&Axis, &usize)| format!("{}={}", axis.name(), axis.values[*value]);
        self.axes.iter().zip(point).map(pair).collect::<Vec<_>>().join(" ")
    }

    /// Checks everything that can be checked without a connection. For each point, returns `None` if it can be
    /// measured, or the reason why the producer would refuse its settings.
    ///
    /// # Errors
    /// Returns [`PlanError`] if the plan exceeds a limit, if it has a value that is never allowed, or if the producer
    /// would refuse every point.
    pub fn check(&self) -> Result<Vec<Option<String>>, PlanError> {
        if self.axes.is_empty() {
            return Err(PlanError::NoAxes);
        }
        if self.axes.len() > AXES_MAX {
            return Err(PlanError::Axes(self.axes.len()));
        }
        let twice = |(i, axis): &(usize, &Axis)| self.axes[..*i].iter().any(|earlier| earlier.setting == axis.setting);
        if let Some((_, axis)) = self.axes.iter().enumerate().find(twice) {
            return Err(PlanError::Twice(axis.name()));
        }
        let sizes = self.axes.iter().map(|axis| axis.values.len()).chain([self.targets.len()]);
        let points = sizes.clone().fold(1usize, usize::saturating_mul);
        if points > POINTS_MAX {
            let product = sizes.map(|size| size.to_string()).collect::<Vec<_>>().join(" x ");
            return Err(PlanError::Points { points, product });
        }
        if !(1..=REPEATS_MAX).contains(&self.repeats) {
            return Err(PlanError::Repeats(self.repeats));
        }
        let refusal = |point: &Vec<usize>| match self.setup(point).map_err(PlanError::Value)?.producer("localhost:9092")
        {
            Ok(_) => Ok(None),
            Err(refused @ ConfigError::Conflict { .. }) => Ok(Some(refused.to_string())),
            Err(refused) => Err(PlanError::Value(refused.to_string())),
        };
        let refusals: Vec<Option<String>> = self.points().iter().map(refusal).collect::<Result<_, _>>()?;
        match refusals.iter().all(Option::is_some) {
            true => Err(PlanError::Contradiction(refusals.into_iter().flatten().next().unwrap_or_default())),
            false => Ok(refusals),
        }
    }

    /// Returns roughly how long one measurement takes, with warm-up, sending and overhead. Returns `None` if the time
    /// cannot be estimated.
    pub fn turn_time(&self) -> Option<Duration> {
        let by_records =
            self.axes.iter().map(|axis| &axis.setting).chain(self.fixed.iter().map(|(setting, _)| setting));
        match self.amount {
            Amount::Time(_) if by_records.into_iter().any(|setting| *setting == Setting::Records) => None,
            Amount::Time(time) => Some(self.warmup + time + OVERHEAD),
            Amount::Records(_) => None,
        }
    }

    /// Returns the largest number of requests in flight of any point, or 0 if no point can be measured. `auto`, the
    /// default, counts as [`AUTO_IN_FLIGHT`].
    pub fn in_flight_max(&self) -> u64 {
        let points = self.points().into_iter();
        let configs = points.filter_map(|point| self.setup(&point).ok()?.producer("localhost:9092").ok());
        let in_flight = configs.map(|config| match config.max_in_flight {
            InFlight::Auto => AUTO_IN_FLIGHT,
            InFlight::Requests(requests) => requests as u64,
        });
        in_flight.max().unwrap_or(0)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn plan(axes: &[&str], targets: &[&str], repeats: u32) -> SweepPlan {
        SweepPlan {
            axes: axes.iter().map(|typed| Axis::parse(typed).expect("an axis")).collect(),
            fixed: Vec::new(),
            properties: Vec::new(),
            targets: targets
                .iter()
                .map(|name| Target { name: (*name).to_owned(), bootstrap_servers: "localhost:9092".to_owned() })
                .collect(),
            amount: Amount::Time(Duration::from_secs(2)),
            warmup: Duration::from_secs(1),
            repeats,
        }
    }

    #[test]
    fn the_product_has_every_point_once_and_the_first_axis_varies_fastest() {
        let plan = plan(&["max.in.flight=1,2,5", "acks=1,all"], &["a"], 1);
        let labels: Vec<String> = plan.points().iter().map(|point| plan.label(point)).collect();
        let expected = [
            "max.in.flight=1 acks=1",
            "max.in.flight=2 acks=1",
            "max.in.flight=5 acks=1",
            "max.in.flight=1 acks=all",
            "max.in.flight=2 acks=all",
            "max.in.flight=5 acks=all",
        ];
        assert_eq!(labels, expected);
        let setup = plan.setup(&plan.points()[3]).expect("valid");
        assert_eq!(setup.properties[0], ("max.in.flight.requests.per.connection".to_owned(), "1".to_owned()));
        assert_eq!(setup.properties[1], ("acks".to_owned(), "all".to_owned()));
    }

    #[test]
    fn targets_alternate_and_every_second_repeat_runs_backwards() {
        let plan = plan(&["linger.ms=0,5"], &["kafka", "fullbore"], 2);
        let order: Vec<(u32, usize, usize)> =
            plan.turns().iter().map(|turn| (turn.repeat, turn.point, turn.target)).collect();
        let forwards = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)];
        let backwards = [(1, 1, 1), (1, 1, 0), (1, 0, 1), (1, 0, 0)];
        assert_eq!(order, [forwards, backwards].concat());
    }

    #[test]
    fn axes_win_over_fixed_values_and_those_over_a_file() {
        let mut plan = plan(&["acks=1,all"], &["a"], 1);
        plan.properties = vec![("linger.ms".to_owned(), "9".to_owned()), ("acks".to_owned(), "0".to_owned())];
        plan.fixed = vec![super::super::axis::fixed("linger.ms=7").expect("valid")];
        let setup = plan.setup(&[1]).expect("valid");
        let found: Vec<&str> = setup.properties.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(found, ["7", "all"]);
    }

    #[test]
    fn some_points_may_contradict_themselves_but_not_all() {
        let mut some = plan(&["acks=1,all", "enable.idempotence=true,false"], &["a"], 1);
        let refusals = some.check().expect("three of four work");
        let refused: Vec<usize> = (0..4).filter(|i| refusals[*i].is_some()).collect();
        assert_eq!(refused, [0], "acks=1 with idempotence");
        some.axes.remove(0);
        some.axes[0] = Axis::parse("linger.ms=0,1").expect("valid");
        some.fixed =
            ["acks=1", "enable.idempotence=true"].map(|typed| super::super::axis::fixed(typed).unwrap()).into();
        let reported = some.check().expect_err("no point works").to_string();
        assert!(
            reported.starts_with("no point can be measured: enable.idempotence=true contradicts acks=1"),
            "{reported}"
        );
    }

    #[test]
    fn impossible_plans_are_refused_with_the_allowed_values() {
        let values = |count: usize| (1..=count).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
        let wide = [format!("batch.size={}", values(40)), format!("linger.ms={}", values(26))];
        for (plan, reported) in [
            (plan(&[], &["a"], 1), "--over NAME=VALUE"),
            (plan(&["acks=1", "acks=all"], &["a"], 1), "acks is in --over twice"),
            (plan(&[&wide[0], &wide[1]], &["a"], 1), "1040 points (40 x 26 x 1), the limit is 1000"),
            (plan(&["acks=1"], &["a"], 0), "--repeats 0: must be from 1 to 100"),
        ] {
            let refusal = plan.check().expect_err(reported).to_string();
            assert!(refusal.contains(reported), "{refusal}");
        }
    }

    #[test]
    fn points_of_equal_settings_are_the_same() {
        assert_eq!(plan(&["acks=all,1,-1", "rtt=0,150,150ms"], &["a"], 1).same(), [0, 1, 0, 3, 4, 3, 3, 4, 3]);
        let contradictory = plan(&["acks=1,0", "enable.idempotence=true"], &["a"], 1);
        assert_eq!(contradictory.same(), [0, 1], "points that cannot be measured stand by themselves");
    }

    #[test]
    fn the_largest_number_in_flight() {
        assert_eq!(plan(&["max.in.flight=5,100"], &["a"], 1).in_flight_max(), 100);
        assert_eq!(plan(&["max.in.flight=1,5,auto"], &["a"], 1).in_flight_max(), AUTO_IN_FLIGHT);
        assert_eq!(plan(&["max.in.flight=1000,auto"], &["a"], 1).in_flight_max(), 1000);
        let mut unset = plan(&["acks=1,all"], &["a"], 1);
        assert_eq!(unset.in_flight_max(), AUTO_IN_FLIGHT, "the producer's own default");
        unset.properties = vec![("max.in.flight.requests.per.connection".to_owned(), "7".to_owned())];
        assert_eq!(unset.in_flight_max(), 7, "a property counts as much as a setting");
    }
}
