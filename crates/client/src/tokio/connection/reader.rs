//! The task that reads responses and passes each to the handler of its request.
//!
//! The task also ends the connection if a request has no response within request.timeout.ms. Responses come in order,
//! so no later request could get its response before the overdue one.

use super::shared::ConnectionState;
use super::socket::Reading;
use crate::protocol::frame;
use bytes::{Bytes, BytesMut};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Minimum capacity for one read, in bytes. The capacity is the length of the last response, limited to this minimum
/// and to [`READ_BYTES_MAX`].
const READ_BYTES: usize = 16 * 1024;
/// Maximum capacity for one read, in bytes.
const READ_BYTES_MAX: usize = 256 * 1024;

/// The reason that is reported when the broker has closed the connection.
pub(super) const CLOSED: &str = "the broker closed the connection";

pub(super) async fn run(mut socket: Reading, shared: Arc<ConnectionState>) {
    let (mut buffer, mut next_read) = (BytesMut::with_capacity(READ_BYTES), READ_BYTES);
    let mut tick =
        tokio::time::interval((shared.request_timeout / 8).clamp(Duration::from_millis(5), Duration::from_secs(1)));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut read_at = Instant::now();
    let reason = loop {
        tokio::select! {
            biased;
            read = read_some(&mut socket, &mut buffer) => {
                read_at = Instant::now();
                match read.map_err(|e| e.to_string()).and_then(|()| dispatch(&mut buffer, &mut next_read, &shared, read_at)) {
                    Ok(()) => {}
                    Err(reason) => break reason,
                }
            }
            () = shared.close.notified() => {
                if shared.closed.load(Ordering::Acquire) && shared.due.lock().is_empty() {
                    break "closed by this client".to_owned();
                }
            }
            _ = tick.tick() => if let Some(reason) = shared.overdue(read_at) {
                break reason;
            }
        }
        if shared.closed.load(Ordering::Acquire) && shared.due.lock().is_empty() {
            break "closed by this client".to_owned();
        }
    };
    shared.fail(&reason);
}

async fn read_some(socket: &mut Reading, buffer: &mut BytesMut) -> io::Result<()> {
    match socket.read_buf(buffer).await? {
        0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, CLOSED)),
        _ => Ok(()),
    }
}

/// Passes each complete response in the buffer to its handler, and reserves memory for the next read.
fn dispatch(
    buffer: &mut BytesMut,
    next_read: &mut usize,
    shared: &ConnectionState,
    now: Instant,
) -> Result<(), String> {
    while let Some(frame) = frame::next(buffer, shared.response_bytes_max).map_err(|error| error.to_string())? {
        *next_read = (frame::PREFIX + frame.len()).clamp(READ_BYTES, READ_BYTES_MAX);
        deliver(frame, shared, now)?;
    }
    // If a response has begun, `frame::next` has already reserved memory for more of it.
    if buffer.len() < frame::PREFIX {
        buffer.reserve(*next_read);
    }
    Ok(())
}

fn deliver(frame: Bytes, shared: &ConnectionState, now: Instant) -> Result<(), String> {
    let answered = shared.due.lock().answered(&frame);
    let (requested, handler) = answered.map_err(|error| error.to_string())?;
    requested.log_answer(&shared.address, frame.len(), now);
    handler(Ok(frame));
    Ok(())
}
