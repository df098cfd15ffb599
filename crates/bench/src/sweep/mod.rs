//! A sweep measures the same workload for every combination of some settings. Each combination is a *point*.
//!
//! * [`setting`], [`Axis`]: the settings that a sweep can vary, under the names that users type.
//! * [`SweepPlan`]: the points, their order, and the contradictions between settings. It connects to no broker.
//! * [`Setup`]: one point's settings.
//! * [`Runner`]: measures one point, with a topic of its own and a warm-up.
//! * [`detour`]: relays before a cluster's brokers, for points with a distance.
//! * [`Results`]: figures and their spread, which `report::sweep` presents.
//! * [`tables`]: ready-made plans.
//!
//! A sweep works against any Kafka cluster. Nothing here depends on Fullbore's broker.

mod axis;
mod causes;
pub mod detour;
mod error;
mod plan;
mod point;
mod results;
mod run;
pub mod setting;
pub mod tables;

pub use axis::{Axis, fixed};
pub use causes::Causes;
pub use error::RunError;
pub use plan::{Amount, POINTS_MAX, PlanError, REPEATS_MAX, SweepPlan, SweepTurn, Target};
pub use point::{LinkSpec, Setup};
pub use results::{METRICS, Metric, PointResult, Results, Run, Spread, metric};
pub use run::{CLIENT_ID, Figures, Runner, cluster};
pub use setting::Setting;

#[cfg(test)]
pub(crate) use results::tests::results as sample_results;
