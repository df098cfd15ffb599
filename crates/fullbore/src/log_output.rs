//! Writes the broker's log to standard error. The broker continues even if no process reads its standard error.
//!
//! A thread that logs a line writes it itself if the write cannot block. Otherwise it queues the line for a thread that
//! only writes log lines. Invariants: lines keep their order. The queued lines have at most [`WAITING_BYTES_MAX`]
//! bytes. Further lines are lost and counted.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tracing_subscriber::fmt::MakeWriter;

/// Maximum size of all queued lines, in bytes.
const WAITING_BYTES_MAX: usize = 4 << 20;

/// Maximum size of a line that a writable pipe accepts without blocking, in bytes (PIPE_BUF).
const AT_ONCE_MAX: usize = 4096;

/// How long the broker waits at its end for a slow reader of its log.
const END_WITHIN: Duration = Duration::from_secs(1);

/// The output for log lines. Clones share the queued lines.
#[derive(Clone)]
pub struct LogOutput(Arc<Shared>);

struct Shared {
    to: Box<dyn Target>,
    backlog: Mutex<Backlog>,
    changed: Condvar,
}

#[derive(Default)]
struct Backlog {
    lines: VecDeque<Vec<u8>>,
    /// The size of `lines`, in bytes.
    bytes: usize,
    /// True while the thread writes a line.
    is_writing: bool,
    lost: u64,
}

/// A stream for log lines.
trait Target: Send + Sync {
    /// Returns true if a write of [`AT_ONCE_MAX`] bytes does not block.
    fn is_writable(&self) -> bool;

    /// Writes a line, or loses it if the stream is closed or its disk is full.
    fn write(&self, line: &[u8]);
}

struct StandardError {
    /// True if standard error is a pipe or socket. Only a pipe or socket never blocks a write that `poll` permits. A
    /// terminal may block, and so may a file on a hanging disk.
    is_pipe: bool,
}

impl Target for StandardError {
    fn is_writable(&self) -> bool {
        let stderr = io::stderr();
        let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
        self.is_pipe && poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    fn write(&self, line: &[u8]) {
        let _lost = io::stderr().write_all(line);
    }
}

impl LogOutput {
    /// Starts the log on standard error.
    ///
    /// # Errors
    /// Returns the system's error if it refuses the thread.
    pub fn to_standard_error() -> io::Result<Self> {
        let kind = rustix::fs::fstat(io::stderr()).map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode));
        let is_pipe = matches!(kind, Ok(rustix::fs::FileType::Fifo | rustix::fs::FileType::Socket));
        Self::to(Box::new(StandardError { is_pipe }))
    }

    fn to(to: Box<dyn Target>) -> io::Result<Self> {
        let output = LogOutput(Arc::new(Shared { to, backlog: Mutex::default(), changed: Condvar::new() }));
        let writer = output.clone();
        std::thread::Builder::new().name("log".to_owned()).spawn(move || writer.write_waiting())?;
        Ok(output)
    }

    /// Waits until the queued lines are written, for at most [`END_WITHIN`].
    pub fn end(&self) {
        let waits = |backlog: &mut Backlog| backlog.is_writing || !backlog.lines.is_empty();
        let _timed_out = self.0.changed.wait_timeout_while(self.backlog(), END_WITHIN, waits);
    }

    fn backlog(&self) -> MutexGuard<'_, Backlog> {
        self.0.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes or queues a line. Never blocks for long.
    fn line(&self, line: &[u8]) {
        let mut backlog = self.backlog();
        let is_first = backlog.lines.is_empty() && !backlog.is_writing;
        if is_first && line.len() <= AT_ONCE_MAX && self.0.to.is_writable() {
            self.0.to.write(line);
        } else if backlog.bytes + line.len() > WAITING_BYTES_MAX {
            backlog.lost += 1;
        } else {
            backlog.bytes += line.len();
            backlog.lines.push_back(line.to_vec());
            self.0.changed.notify_all();
        }
    }

    /// Writes the lines of the backlog, and then logs how many were lost.
    fn write_waiting(&self) {
        let mut backlog = self.backlog();
        loop {
            if let Some(line) = backlog.lines.pop_front() {
                backlog.bytes -= line.len();
                backlog.is_writing = true;
                drop(backlog);
                self.0.to.write(&line);
                backlog = self.backlog();
                backlog.is_writing = false;
                self.0.changed.notify_all();
            } else if backlog.lost > 0 {
                let lines = std::mem::take(&mut backlog.lost);
                drop(backlog);
                tracing::warn!(
                    lines,
                    "cannot write log lines: they are lost; check what reads the broker's standard error"
                );
                backlog = self.backlog();
            } else {
                backlog = self.0.changed.wait(backlog).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

/// The subscriber passes the whole line of an event in one call of `write`.
impl Write for LogOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogOutput {
    type Writer = LogOutput;

    fn make_writer(&'a self) -> LogOutput {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A pipe that is read only while `is_read` is true.
    #[derive(Clone, Default)]
    struct Pipe {
        is_read: Arc<AtomicBool>,
        read: Arc<Mutex<Vec<u8>>>,
    }

    impl Target for Pipe {
        fn is_writable(&self) -> bool {
            self.is_read.load(Ordering::SeqCst)
        }

        fn write(&self, line: &[u8]) {
            while !self.is_writable() {
                std::thread::yield_now();
            }
            self.read.lock().expect("unbroken").extend_from_slice(line);
        }
    }

    impl Pipe {
        fn text(&self) -> String {
            String::from_utf8(self.read.lock().expect("unbroken").clone()).expect("UTF-8")
        }
    }

    #[test]
    fn read_log_has_a_line_once_it_is_logged() {
        let pipe = Pipe::default();
        pipe.is_read.store(true, Ordering::SeqCst);
        let output = LogOutput::to(Box::new(pipe.clone())).expect("a thread");
        output.line(b"one\n");
        assert_eq!(pipe.text(), "one\n");
    }

    #[test]
    fn unread_log_does_not_block_and_is_written_in_order_once_it_is_read() {
        let pipe = Pipe::default();
        let output = LogOutput::to(Box::new(pipe.clone())).expect("a thread");
        output.line(b"one\n");
        output.line(&[b'x'; 2 * AT_ONCE_MAX]);
        pipe.is_read.store(true, Ordering::SeqCst);
        output.line(b"two\n");
        output.end();
        assert_eq!(pipe.text(), format!("one\n{}two\n", "x".repeat(2 * AT_ONCE_MAX)));
    }

    #[test]
    fn unread_log_is_full_further_lines_are_lost_and_counted() {
        let pipe = Pipe::default();
        let output = LogOutput::to(Box::new(pipe.clone())).expect("a thread");
        let line = [b'x'; 64 << 10];
        (0..100).for_each(|_| output.line(&line));
        let backlog = output.backlog();
        assert!(backlog.bytes <= WAITING_BYTES_MAX, "{}", backlog.bytes);
        assert!((34..=36).contains(&backlog.lost), "{}: 64 lines wait, and one is being written", backlog.lost);
        drop(backlog);
        pipe.is_read.store(true, Ordering::SeqCst);
        output.end();
        assert_eq!(output.backlog().bytes, 0);
    }
}
