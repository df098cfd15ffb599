//! The connection of one client. Requests are admitted in order, complete concurrently, and are answered in order.
//!
//! The reading half ([`super::reading`]) admits each request, which fixes its position in the order, and queues its
//! response. The writing half ([`super::writing`]) awaits the responses in that order. Both run in the same task. So a
//! request that can be answered at once costs no task switch. A fault of one connection never ends another.

use super::admitted::Ended;
use super::handover::{Handover, in_turn};
use super::idleness::Idleness;
use super::input::InputError;
use super::reading::{ReadEnd, read};
use super::stream::ClientStream;
use super::writing::write;
use crate::api::{Client, Fault};
use crate::coordinator::Unwritten;
use crate::node::Node;
use std::future::pending;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How long a client that has ended its side may stay silent, even if a response is still in progress. Most such
/// clients are gone.
const HUNG_UP_MAX: Duration = Duration::from_secs(5);

/// Serves one client until either side is done.
pub async fn serve(
    broker: &Arc<Node>,
    stream: &Arc<ClientStream>,
    peer: SocketAddr,
    listener: usize,
    stop: watch::Receiver<bool>,
) {
    let queue = Handover::new(broker.metadata.config.network.connection.requests_max);
    let idleness = Arc::new(Idleness::default());
    let unwritten = Arc::new(Unwritten::default());
    let client = Client::new(peer, Arc::clone(&unwritten));
    // Both halves are pinned here, where they are created. A future that is pinned as an argument takes its memory
    // twice.
    let reading = pin!(async {
        match read(broker, stream, client, listener, &queue, &idleness, stop).await {
            // The client has not ended its side. As long as it waits for a response, it is not idle.
            Ok(ReadEnd::Stopping) => Ok(None),
            Ok(ReadEnd::Client) => {
                idleness.end();
                Ok(None)
            }
            Err(lost @ Ended::Input(InputError::Io(_))) => Err(lost),
            // Requests that came before the bad one are still answered.
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
            ended = end_idle(&idleness, broker.metadata.config.network.connection.idle_max) => Err(ended),
        }
    });
    let ended = in_turn(&queue, reading, writing).await;
    match ended {
        Ok((None, ())) => tracing::debug!(%peer, "connection closed"),
        Ok((Some(Ended::Input(InputError::Cut)), ())) => {
            tracing::debug!(%peer, error = %InputError::Cut, "connection lost")
        }
        Ok((Some(Ended::Fault(Fault::NoRoom)), ())) | Err(Ended::Fault(Fault::NoRoom)) => {
            tracing::warn!(%peer, "cannot make a large response: other clients are still reading theirs, so the connection is closed; request it again")
        }
        Ok((Some(bad), ())) => tracing::warn!(%peer, error = %bad, "connection closed on a bad request"),
        Err(Ended::Idle(time)) => tracing::debug!(%peer, ?time, "connection idle"),
        Err(error @ Ended::HungUp(_)) => tracing::debug!(%peer, %error, "connection lost"),
        Err(Ended::Unread) => {
            tracing::warn!(%peer, "cannot keep an unread response in memory: the connection of the slowest client is closed; check if it reads")
        }
        Err(Ended::Input(InputError::Io(error))) | Err(Ended::Output(error)) => {
            tracing::debug!(%peer, %error, "connection lost");
        }
        Err(error) => tracing::warn!(%peer, %error, "connection closed on a bad request"),
    }
}

/// Returns once the client has been idle for too long. A client that waits for a response is not idle, but if it has
/// ended its side, it counts as idle even then.
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
    let evicted = async {
        while !idleness.is_evicted() {
            idleness.ended().await;
        }
    };
    let max = idle_max.map_or(HUNG_UP_MAX, |max| max.min(HUNG_UP_MAX));
    tokio::select! {
        biased;
        () = evicted => Ended::Unread,
        () = idleness.reaches(max) => Ended::HungUp(max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the size of the future that a function creates. The function is not called.
    fn size_of_future<A, B, C, D, F: Future>(_: impl Fn(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    /// With ten thousand idle connections there are ten thousand of these tasks. To keep them small, box large futures
    /// that are rarely awaited. Pin futures where they are created, so that none is in the task twice.
    #[test]
    fn the_task_of_a_connection_is_small() {
        let task = |broker: Arc<Node>, stream: Arc<ClientStream>, peer, stop| async move {
            serve(&broker, &stream, peer, 0, stop).await
        };
        let size = size_of_future(task);
        assert!(size <= 6 * 1024, "{size} bytes");
    }
}
