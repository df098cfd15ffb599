//! What may befall a cluster.

use crate::network::Node;

/// One misfortune, or its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Befalling {
    Start(i32),
    Kill(i32),
    Stop(i32),
    PowerCut(i32),
    /// The disk of a broker is copied, as it is at one moment.
    Copy(i32),
    /// The last copy is put in the place of the disk of a broker that does not run.
    PutBack(i32),
    Pause(i32, i64),
    Resume(i32),
    /// One connection breaks.
    Break,
    /// What is sent on one connection arrives late.
    Stall(i64),
    /// What brokers ask of the database arrives late.
    StallCommands(i64),
    /// Nothing gets from the one to the other any more.
    Cut(Node, Node),
    Heal,
    DatabaseDown,
    DatabaseUp,
    /// The answer to the next commit is lost.
    LoseAnswer,
    /// A copy of the database is put in its place that is older by so many versions.
    RestoreOlder(usize),
    RestoreNewest,
    /// The disk takes nothing more.
    Fill(i32),
    /// The disk has room again.
    Free(i32),
    /// The first replica is to lead.
    Prefer(i32),
}
