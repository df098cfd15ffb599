//! Faults of a simulated cluster.

use crate::network::Node;

/// A fault that the schedule injects, the end of a fault, or a request of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChaosEvent {
    Start(i32),
    Kill(i32),
    Stop(i32),
    PowerCut(i32),
    /// An operator copies a broker's disk.
    Copy(i32),
    /// An operator replaces the disk of a stopped broker by its last copy.
    PutBack(i32),
    Pause(i32, i64),
    Resume(i32),
    /// A connection breaks.
    Break,
    /// Messages on one connection arrive late.
    Stall(i64),
    /// Commands from brokers to the database arrive late.
    StallCommands(i64),
    /// Messages from the first node to the second are lost.
    Cut(Node, Node),
    Heal,
    DatabaseDown,
    DatabaseUp,
    /// The response to the next commit is lost.
    LoseAnswer,
    /// An operator replaces the database by a backup, older by this number of versions.
    RestoreOlder(usize),
    RestoreNewest,
    /// The broker's disk becomes full.
    Fill(i32),
    /// The broker's disk gets free space again.
    Free(i32),
    /// An operator requests an election of the preferred leader, which is the first replica.
    Prefer(i32),
}
