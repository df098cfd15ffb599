//! Faults of a simulated cluster.

use crate::network::Node;

/// Event that the schedule injects: a fault, its end, or a request of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChaosEvent {
    Start(i32),
    Kill(i32),
    Stop(i32),
    PowerCut(i32),
    /// The disk of a broker is copied at one moment.
    Copy(i32),
    /// The last copy replaces the disk of a broker that has no process.
    PutBack(i32),
    Pause(i32, i64),
    Resume(i32),
    /// A connection breaks.
    Break,
    /// Messages on one connection arrive late.
    Stall(i64),
    /// Commands from brokers to the database arrive late.
    StallCommands(i64),
    /// No message gets from the first node to the second.
    Cut(Node, Node),
    Heal,
    DatabaseDown,
    DatabaseUp,
    /// The response to the next commit is lost.
    LoseAnswer,
    /// A copy that is older by this number of versions replaces the database.
    RestoreOlder(usize),
    RestoreNewest,
    /// The disk accepts no more writes.
    Fill(i32),
    /// The disk has room again.
    Free(i32),
    /// The first replica should lead.
    Prefer(i32),
}
