//! Shows the progress of a sweep: a line for each measurement, and on a terminal a bar with the time left.

use crate::demo::figures::grouped;
use crate::output::words;
use fullbore_bench::report::sweep::number;
use fullbore_bench::sweep::Figures;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Maximum number of letters of an error in a progress line. The report contains the whole error.
const ERROR_LETTERS_MAX: usize = 160;

/// The progress of one sweep.
pub struct SweepProgress {
    bar: Option<ProgressBar>,
    turns: usize,
    done: usize,
    /// How many measurements were made. Points whose settings contradict each other are skipped, which takes no time.
    measured: usize,
    begun: Instant,
    expected: Option<Duration>,
}

impl SweepProgress {
    /// Creates the progress of `turns` measurements. `expected` is the approximate time of one measurement, if it is
    /// known.
    pub fn new(turns: usize, expected: Option<Duration>) -> Self {
        let bar = (std::io::stdout().is_terminal() && std::io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{bar:30} {pos} of {len}  {msg}").expect("the template is valid");
            let bar = ProgressBar::new(turns as u64).with_style(style);
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        SweepProgress { bar, turns, done: 0, measured: 0, begun: Instant::now(), expected }
    }

    /// Shows that a measurement begins.
    pub fn begins(&self, label: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{label}{}", self.left()));
        }
    }

    /// Shows that a measurement has ended.
    pub fn ended(&mut self, label: &str, outcome: &Result<Figures, String>, was_measured: bool) {
        self.done += 1;
        self.measured += usize::from(was_measured);
        let found = match outcome {
            Ok(figures) => format!(
                "{} records/s, p50 {} ms, p99 {} ms",
                grouped(figures.records_per_sec() as u64),
                number(figures.percentiles.p50_us as f64 / 1e3),
                number(figures.percentiles.p99_us as f64 / 1e3)
            ),
            Err(error) => format!("error: {}", error.chars().take(ERROR_LETTERS_MAX).collect::<String>()),
        };
        let width = self.turns.to_string().len();
        let text = format!("{:>width$}/{}  {label}: {found}", self.done, self.turns);
        match &self.bar {
            Some(bar) => {
                bar.println(text);
                bar.set_position(self.done as u64);
            }
            None => words(&format!("{text}{}", self.left())),
        }
    }

    /// Removes the display.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn left(&self) -> String {
        let each = match self.measured {
            0 => self.expected,
            count => Some(self.begun.elapsed() / count as u32),
        };
        match (each, self.turns - self.done) {
            (Some(each), left) if left > 0 => format!("; about {} left", duration(each * left as u32)),
            _ => String::new(),
        }
    }
}

/// Formats a duration like 42 s, 3 min 20 s, or 2 h 5 min.
pub fn duration(time: Duration) -> String {
    match time.as_secs() {
        seconds if seconds < 60 => format!("{} s", seconds.max(1)),
        seconds if seconds < 3600 && seconds % 60 == 0 => format!("{} min", seconds / 60),
        seconds if seconds < 3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_shown_in_two_units() {
        let shown = [0, 42, 60, 200, 7_500].map(|seconds| duration(Duration::from_secs(seconds)));
        assert_eq!(shown, ["1 s", "42 s", "1 min", "3 min 20 s", "2 h 5 min"]);
    }

    #[test]
    fn the_time_left_is_known_before_the_first_measurement_ends() {
        let mut progress = SweepProgress::new(10, Some(Duration::from_secs(3)));
        assert_eq!(progress.left(), "; about 30 s left");
        progress.ended("x", &Err("refused".to_owned()), false);
        assert_eq!(progress.left(), "; about 27 s left", "what was refused took no time");
    }
}
