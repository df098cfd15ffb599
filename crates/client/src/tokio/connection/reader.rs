//! The task that reads responses and hands each to the request it answers.
//!
//! It also notices what takes too long: a request without a response within request.timeout.ms ends the
//! connection, since every later response would queue behind it.

use super::socket::Reading;
use super::{PROTOCOL, Pending, Shared};
use bytes::{Buf, Bytes, BytesMut};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Read at once when no long response is under way.
const READ_BYTES: usize = 16 * 1024;

pub(super) async fn run(mut socket: Reading, shared: Arc<Shared>) {
    let mut buffer = BytesMut::with_capacity(READ_BYTES);
    let mut tick =
        tokio::time::interval((shared.request_timeout / 8).clamp(Duration::from_millis(5), Duration::from_secs(1)));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut read_at = Instant::now();
    let reason = loop {
        tokio::select! {
            biased;
            read = read_some(&mut socket, &mut buffer) => {
                read_at = Instant::now();
                match read.map_err(|e| e.to_string()).and_then(|()| dispatch(&mut buffer, &shared)) {
                    Ok(()) => {}
                    Err(reason) => break reason,
                }
            }
            () = shared.close.notified() => {
                if shared.closed.load(Ordering::Acquire) && shared.pending.lock().is_empty() {
                    break "closed by this client".to_owned();
                }
            }
            _ = tick.tick() => if let Some(reason) = overdue(&shared, read_at) {
                break reason;
            }
        }
        if shared.closed.load(Ordering::Acquire) && shared.pending.lock().is_empty() {
            break "closed by this client".to_owned();
        }
    };
    shared.fail(&reason);
}

async fn read_some(socket: &mut Reading, buffer: &mut BytesMut) -> io::Result<()> {
    match socket.read_buf(buffer).await? {
        0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the broker closed the connection")),
        _ => Ok(()),
    }
}

/// Why the connection should end, if it should; `read_at` is when something last came.
pub(super) fn overdue(shared: &Shared, read_at: Instant) -> Option<String> {
    let active_at = shared.unanswered_at.lock().map_or(read_at, |written| written.max(read_at));
    match shared.pending.lock().front() {
        Some(oldest) if oldest.sent_at.elapsed() >= shared.request_timeout => {
            Some(format!("no response in {:?}", shared.request_timeout))
        }
        None if active_at.elapsed() >= shared.idle_max => Some("idle for connections.max.idle.ms".to_owned()),
        _ => None,
    }
}

/// Hands every whole response in the buffer on, and makes room for the rest of the next.
fn dispatch(buffer: &mut BytesMut, shared: &Shared) -> Result<(), String> {
    while buffer.len() >= 4 {
        let len = u32::from_be_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]) as usize;
        if len > shared.response_bytes_max {
            return Err(format!("a response of {len} bytes is longer than {} allowed", shared.response_bytes_max));
        }
        if buffer.len() < 4 + len {
            buffer.reserve(4 + len - buffer.len());
            return Ok(());
        }
        buffer.advance(4);
        deliver(buffer.split_to(len).freeze(), shared)?;
    }
    buffer.reserve(READ_BYTES);
    Ok(())
}

fn deliver(frame: Bytes, shared: &Shared) -> Result<(), String> {
    let Some(answered) = take_answered(&frame, shared) else {
        return Err("a response to no request, or out of order".to_owned());
    };
    debug_assert_eq!(frame[..4], answered.correlation_id.to_be_bytes());
    if tracing::enabled!(target: PROTOCOL, tracing::Level::DEBUG) {
        shared.log_response(&answered, &frame);
    }
    (answered.handler)(Ok(frame));
    Ok(())
}

/// The oldest request, if this is its response.
fn take_answered(frame: &Bytes, shared: &Shared) -> Option<Pending> {
    let id = i32::from_be_bytes(frame.get(..4)?.try_into().ok()?);
    let mut pending = shared.pending.lock();
    if pending.front()?.correlation_id != id {
        return None;
    }
    pending.pop_front()
}
