//! How far a phase is: a bar on a terminal, a line a second elsewhere.

use super::figures::grouped;
use crate::output::words;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const LINE_EVERY: Duration = Duration::from_secs(1);

/// The progress of one phase: how many records were sent, and how many were read.
pub struct DemoProgress {
    name: &'static str,
    records: u64,
    sent: AtomicU64,
    bars: Option<(ProgressBar, ProgressBar)>,
    last_line: Mutex<Instant>,
}

impl DemoProgress {
    /// A phase of this many records.
    pub fn new(name: &'static str, records: u64) -> Self {
        let bars = std::io::stderr().is_terminal().then(|| {
            let both = MultiProgress::new();
            let style = ProgressStyle::with_template("{prefix:>8} {bar:40} {human_pos:>11} of {human_len}  {per_sec}")
                .expect("the template is valid");
            let bar = |prefix| both.add(ProgressBar::new(records).with_style(style.clone()).with_prefix(prefix));
            (bar("sent"), bar("verified"))
        });
        words(&format!("Streaming {} records, {name}", grouped(records)));
        DemoProgress { name, records, sent: AtomicU64::new(0), bars, last_line: Mutex::new(Instant::now()) }
    }

    /// So many were sent.
    pub fn sent(&self, records: u64) {
        self.sent.store(records, Ordering::Relaxed);
    }

    /// So many were read; shows both.
    pub fn read(&self, records: u64) {
        let sent = self.sent_at(records);
        if let Some((sent_bar, read_bar)) = &self.bars {
            sent_bar.set_position(sent);
            read_bar.set_position(records);
            return;
        }
        let Ok(mut last_line) = self.last_line.lock() else { return };
        if last_line.elapsed() >= LINE_EVERY {
            *last_line = Instant::now();
            let (sent, read, all) = (grouped(sent), grouped(records), grouped(self.records));
            words(&format!("  {}: sent {sent}, read and verified {read} of {all}", self.name));
        }
    }

    /// How many were sent when so many are read: the sender counts now and then, but what was read was sent.
    fn sent_at(&self, read: u64) -> u64 {
        self.sent.load(Ordering::Relaxed).max(read)
    }

    /// The phase is over.
    pub fn finish(&self) {
        if let Some((sent_bar, read_bar)) = &self.bars {
            sent_bar.finish_and_clear();
            read_bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_read_than_sent() {
        let progress = DemoProgress::new("test", 1_000);
        progress.sent(256);
        assert_eq!((progress.sent_at(100), progress.sent_at(300)), (256, 300));
    }
}
