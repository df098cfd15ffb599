//! Shows the progress of a phase, as a bar on a terminal or else as a line each second.

use super::figures::grouped;
use crate::output::words;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const LINE_EVERY: Duration = Duration::from_secs(1);

/// The progress of one phase: how many records were sent and read.
pub struct DemoProgress {
    name: &'static str,
    records: u64,
    sent: AtomicU64,
    bars: Option<(ProgressBar, ProgressBar)>,
    last_line: Mutex<Instant>,
}

impl DemoProgress {
    /// Creates the progress of a phase of `records` records, whose sending ends after `limit`.
    pub fn new(name: &'static str, records: u64, limit: Option<Duration>) -> Self {
        let bars = std::io::stderr().is_terminal().then(|| {
            let both = MultiProgress::new();
            let style = ProgressStyle::with_template("{prefix:>8} {bar:40} {human_pos:>11} of {human_len}  {per_sec}")
                .expect("the template is valid");
            let bar = |prefix| both.add(ProgressBar::new(records).with_style(style.clone()).with_prefix(prefix));
            (bar("sent"), bar("verified"))
        });
        let end = limit.map_or_else(String::new, |limit| format!(", for at most {} s", limit.as_secs()));
        words(&format!("Streaming {} records, {name}{end}", grouped(records)));
        DemoProgress { name, records, sent: AtomicU64::new(0), bars, last_line: Mutex::new(Instant::now()) }
    }

    /// Sets how many records were sent.
    pub fn sent(&self, records: u64) {
        self.sent.store(records, Ordering::Relaxed);
    }

    /// Sets how many records were read, and shows both numbers.
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

    /// Returns how many records were sent. The sender may not have counted its latest records yet, but at least `read`
    /// records were sent.
    fn sent_at(&self, read: u64) -> u64 {
        self.sent.load(Ordering::Relaxed).max(read)
    }

    /// Removes the display of the phase.
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
    fn the_number_sent_is_never_below_the_number_read() {
        let progress = DemoProgress::new("test", 1_000, None);
        progress.sent(256);
        assert_eq!((progress.sent_at(100), progress.sent_at(300)), (256, 300));
    }
}
