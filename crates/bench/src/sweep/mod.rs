//! A sweep: the same workload measured at every point of a product of settings.
//!
//! * [`setting`], [`Axis`]: settings that may vary, by the names that users type.
//! * [`SweepPlan`]: the product, its order, and its contradictions. Pure.
//! * [`Setup`]: one point's settings. Pure.
//! * [`Runner`]: measures one point: a topic, a warm-up, a measurement.
//! * [`detour`]: relays before a cluster's brokers, for points with a distance.
//! * [`Results`]: figures and their spread; `report::sweep` presents them.
//! * [`tables`]: ready-made plans.
//!
//! Works against any Kafka; nothing here knows Fullbore's broker.

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
