//! Ready-made sweeps. Each has the name of the document that shows its table, and a description of its subject.
//!
//! Invariant: every table is a plan that passes [`SweepPlan::check`](super::SweepPlan::check).

use super::axis::{Axis, fixed};
use super::plan::Amount;
use super::setting::Setting;
use std::time::Duration;

/// The layout of a printed table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableLayout {
    /// A grid for each figure. The rows are the values of the first axis, and the columns those of the second and third
    /// axes.
    Grids,
    /// A row for each value of the first axis, with throughput and every latency.
    Rows,
}

/// A ready-made sweep.
#[derive(Debug)]
pub struct Table {
    /// The name of the table, as users type it after `--table`.
    pub name: &'static str,
    /// The subject of the table.
    pub title: &'static str,
    /// An explanation of the table, and its requirements.
    pub about: &'static str,
    /// The layout in which the table is printed.
    pub layout: TableLayout,
    over: &'static [&'static str],
    set: &'static [&'static str],
    /// The condition that ends a measurement.
    pub amount: Amount,
    /// How often each point is measured.
    pub repeats: u32,
}

/// The setting that limits the producer to one connection for each broker. Requests in flight are counted for each
/// connection, so the documents' numbers assume one connection.
const ONE_CONNECTION: &str = "connections.per.broker=1";

/// All tables.
pub static TABLES: &[Table] = &[
    Table {
        name: "seed-000",
        title: "Throughput and latency against requests in flight, for acks=1 and acks=all",
        about: "Where do more requests in flight stop to help, and what does acks=all cost? Three record sizes, with \
             nine partitions and with one, as fast as possible, so that latency is mostly the time spent in the \
             producer's buffer. acks=all differs from acks=1 only with replicas: name a cluster of three brokers \
             with --bootstrap-server and add --set replication-factor=3.",
        layout: TableLayout::Grids,
        over: &["max.in.flight=1,2,3,4,5,auto", "acks=1,all", "record-size=64,1024,10240", "partitions=9,1"],
        set: &[ONE_CONNECTION],
        amount: Amount::Time(Duration::from_secs(3)),
        repeats: 1,
    },
    Table {
        name: "seed-001-wan",
        title: "One record a request at a distance: throughput is requests in flight by the round trip",
        about: "Each request carries one record of 1,000 bytes, so that only more requests in flight move more records. A \
                broker that remembers five batches of an idempotent producer stops at five. The link is a relay (rtt=150 unless set); \
                on a real one, name its broker with --bootstrap-server and add --set rtt=0.",
        layout: TableLayout::Rows,
        over: &["max.in.flight=1,5,10,20,50,100"],
        // A request has room for only one record of 1,000 bytes, so a batch that waits cannot grow. With one request in
        // flight, the last of 500 records that are sent at once therefore waits for 500 round trips. If a round trip
        // exceeds 240 ms, that is more than Kafka's default of delivery.timeout.ms (two minutes).
        set: &[
            ONE_CONNECTION,
            "rtt=150",
            "record-size=1000",
            "partitions=1",
            "batch.size=1",
            "max.request.size=1100",
            "linger.ms=0",
            "delivery.timeout.ms=1800000",
            "enable.idempotence=true",
        ],
        amount: Amount::Records(500),
        repeats: 1,
    },
    Table {
        name: "seed-001-localhost",
        title: "Records of 1,000 bytes on one machine, with 1, 5 and 10 requests in flight",
        about: "Without a distance, more requests in flight only hide the broker's own time. Records are sent as fast \
             as possible, so that latency is mostly the time in the producer's buffer.",
        layout: TableLayout::Rows,
        over: &["max.in.flight=1,5,10"],
        set: &[ONE_CONNECTION, "record-size=1000", "partitions=1", "enable.idempotence=true"],
        amount: Amount::Time(Duration::from_secs(5)),
        repeats: 3,
    },
];

impl Table {
    /// Returns the table of this name, if there is one.
    pub fn named(name: &str) -> Option<&'static Table> {
        TABLES.iter().find(|table| table.name == name)
    }

    /// Returns the table's axes. If `over` has an axis with the same setting, that axis replaces the table's. The other
    /// axes of `over` are appended.
    pub fn axes(&self, over: &[Axis]) -> Vec<Axis> {
        let mut axes: Vec<Axis> =
            self.over.iter().map(|typed| Axis::parse(typed).expect("a table's axes are valid")).collect();
        for axis in over {
            match axes.iter_mut().find(|own| own.setting == axis.setting) {
                Some(own) => *own = axis.clone(),
                None => axes.push(axis.clone()),
            }
        }
        axes
    }

    /// Returns the settings that are the same for all points of the table. The caller appends the user's settings,
    /// which override them.
    pub fn fixed(&self) -> Vec<(Setting, String)> {
        self.set.iter().map(|typed| fixed(typed).expect("a table's settings are valid")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::plan;
    use super::*;

    #[test]
    fn every_table_is_a_plan_without_contradictions() {
        for table in TABLES {
            let mut plan = plan(&[], &["a"], table.repeats);
            plan.axes = table.axes(&[]);
            plan.fixed = table.fixed();
            let refusals = plan.check().unwrap_or_else(|error| panic!("{}: {error}", table.name));
            assert_eq!(refusals.iter().flatten().count(), 0, "{}", table.name);
            assert_eq!(Table::named(table.name).map(|found| found.title), Some(table.title));
        }
    }

    #[test]
    fn an_axis_of_ones_own_replaces_the_tables() {
        let table = Table::named("seed-001-wan").expect("there is one");
        let own = ["max.in.flight=1,2", "acks=all"].map(|typed| Axis::parse(typed).expect("valid"));
        assert_eq!(table.axes(&own), own);
    }
}
