//! Measures a plain TCP stream over the demo's link. The result is the highest rate of one connection over this link.
//!
//! Invariant: the stream's relay has the same settings as the relay before the broker.

use super::distance::{Distance, DistanceSettings};
use super::stream::interrupted;
use crate::failure::Failure;
use crate::stop::Stop;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// How long the stream is sent.
const SENT_FOR: Duration = Duration::from_secs(3);
/// How often the sender checks for a stop.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Maximum number of bytes of one write and of one read.
const CHUNK: usize = 256 * 1024;

/// Sends the stream and returns its rate in bytes per second, measured from the arrival of the first bytes to that of
/// the last.
///
/// # Errors
/// Returns [`Failure`] if a socket fails, or the user stops the command.
pub fn stream(settings: &DistanceSettings, runtime: &Runtime, stop: &Stop) -> Result<f64, Failure> {
    let sink = TcpListener::bind("127.0.0.1:0")?;
    let target = sink.local_addr()?.to_string();
    let relayed = Distance::new(settings, runtime)?.relay_to(&target, runtime);
    let arriving = std::thread::Builder::new().name("plain-stream".to_owned()).spawn(move || arrive(&sink))?;
    // After a failure, the sink's thread may wait forever for a connection. It then ends with the program.
    send(&relayed.address, stop)?;
    if stop.is_requested() {
        return Err(interrupted());
    }
    match arriving.join() {
        Ok(rate) => Ok(rate?),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn send(address: &str, stop: &Stop) -> io::Result<()> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_write_timeout(Some(LOOK_EVERY))?;
    let (chunk, started) = (vec![0; CHUNK], Instant::now());
    while started.elapsed() < SENT_FOR && !stop.is_requested() {
        match socket.write(&chunk) {
            // The link is full. The loop checks for a stop and writes again.
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            written => _ = written?,
        }
    }
    socket.shutdown(Shutdown::Write)
}

fn arrive(sink: &TcpListener) -> io::Result<f64> {
    let (mut socket, _) = sink.accept()?;
    let mut chunk = vec![0; CHUNK];
    let first = socket.read(&mut chunk)?;
    let (started, mut bytes, mut last) = (Instant::now(), 0, Instant::now());
    while let read @ 1.. = socket.read(&mut chunk)? {
        (bytes, last) = (bytes + read, Instant::now());
    }
    let seconds = (last - started).as_secs_f64();
    // If one read has received the whole stream, no rate can be computed.
    Ok(if seconds > 0.0 { bytes as f64 / seconds } else { first as f64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_stream_reaches_the_bandwidth_of_its_link() {
        let runtime = Runtime::new().expect("a runtime");
        let settings =
            DistanceSettings { bandwidth: Some(1_000_000), ..DistanceSettings::new(Duration::from_millis(1)) };
        let rate = stream(&settings, &runtime, &Stop::new()).expect("it arrives");
        assert!((1.0..1_500_000.0).contains(&rate), "{rate}");
    }
}
