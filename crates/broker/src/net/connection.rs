//! Connection of one client: admit in order, complete concurrently, answer in order.
//!
//! The reading half ([`super::reading`]) admits each request, which fixes its place in the order, and queues its
//! completion; the writing half ([`super::writing`]) awaits the completions in that order. Both run in one task, so
//! that a request answered at once costs no switch.
//!
//! Invariant: a fault of this connection ends no other.

use super::admitted::Ended;
use super::handover::{Handover, in_turn};
use super::idleness::Idleness;
use super::input::InputError;
use super::reading::{ReadEnd, read};
use super::stream::ClientStream;
use super::writing::write;
use crate::api::Client;
use crate::coordinator::Unwritten;
use crate::node::Node;
use std::future::pending;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Time that the answers of a client that sends nothing more may stand still. Most such clients are gone.
const HUNG_UP_MAX: Duration = Duration::from_secs(5);

/// Serves one client until either side is done.
pub async fn serve(
    broker: &Arc<Node>,
    stream: &ClientStream,
    peer: SocketAddr,
    listener: usize,
    stop: watch::Receiver<bool>,
) {
    let queue = Handover::new(broker.config.network.connection.requests_max);
    let idleness = Idleness::default();
    let unwritten = Arc::new(Unwritten::default());
    let client = Client::new(peer, Arc::clone(&unwritten));
    // Pinned where they are made: an argument that is pinned later takes its room twice.
    let reading = pin!(async {
        match read(broker, stream, client, listener, &queue, &idleness, stop).await {
            // The broker may take its time where it ends the connection itself.
            Ok(ReadEnd::Stopping) => Ok(None),
            Ok(ReadEnd::Client) => {
                idleness.end();
                Ok(None)
            }
            Err(lost @ Ended::Input(InputError::Io(_))) => Err(lost),
            // Requests before the bad one are still answered.
            Err(ended) => {
                idleness.end();
                Ok(Some(ended))
            }
        }
    });
    let writing = pin!(async {
        tokio::select! {
            biased;
            ended = write(broker, stream, &queue, &idleness) => ended,
            never = unwritten.carry_out() => match never {},
            ended = end_idle(&idleness, broker.config.network.connection.idle_max) => Err(ended),
        }
    });
    let ended = in_turn(&queue, reading, writing).await;
    match ended {
        Ok((None, ())) => tracing::debug!(%peer, "connection closed"),
        Ok((Some(Ended::Input(InputError::Cut)), ())) => {
            tracing::debug!(%peer, error = %InputError::Cut, "connection lost")
        }
        Ok((Some(bad), ())) => tracing::warn!(%peer, error = %bad, "connection closed on a bad request"),
        Err(Ended::Idle(time)) => tracing::debug!(%peer, ?time, "connection idle"),
        Err(error @ Ended::HungUp(_)) => tracing::debug!(%peer, %error, "connection lost"),
        Err(Ended::Input(InputError::Io(error))) | Err(Ended::Output(error)) => {
            tracing::debug!(%peer, %error, "connection lost");
        }
        Err(error) => tracing::warn!(%peer, %error, "connection closed on a bad request"),
    }
}

/// Returns when the client has done nothing for too long. One that waits for an answer is not idle, however long it
/// waits, unless it has ended its side.
async fn end_idle(idleness: &Idleness, idle_max: Option<Duration>) -> Ended {
    let idle = async {
        let Some(max) = idle_max else { return pending().await };
        idleness.reaches(max).await;
        max
    };
    tokio::select! {
        max = idle => return Ended::Idle(max),
        () = idleness.ended() => {}
    }
    let max = idle_max.map_or(HUNG_UP_MAX, |max| max.min(HUNG_UP_MAX));
    idleness.reaches(max).await;
    Ended::HungUp(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of the future that a function makes, which is not called.
    fn size_of_future<A, B, C, D, F: Future>(_: impl Fn(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    /// Ten thousand connections that rest hold this, so that no future in it may be there twice, nor a large one that
    /// is seldom awaited: box that one, and pin where it is made what is handed on.
    #[test]
    fn the_task_of_a_connection_is_small() {
        let task = |broker: Arc<Node>, stream: Arc<ClientStream>, peer, stop| async move {
            serve(&broker, &stream, peer, 0, stop).await
        };
        let size = size_of_future(task);
        assert!(size <= 6 * 1024, "{size} bytes");
    }
}
