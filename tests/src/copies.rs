//! Runs `fullbore copy` as a user does. A test starts and kills the process, and compares the copier's target with its
//! source.

use crate::batch::now_ms;
use crate::process::binary;
use crate::{Random, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::NamedTempFile;

/// How long a copier may take to reach an expected state. The machine may be busy.
const SOON: Duration = Duration::from_secs(120);

/// Runs a `fullbore` command, which must succeed, and returns its output.
fn run(bootstrap: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(binary());
    let output = command.args(arguments).args(["--bootstrap-server", bootstrap]).output().expect("the binary starts");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// A running copier.
pub struct CopyProcess {
    child: Child,
    reported: NamedTempFile,
}

impl CopyProcess {
    /// Starts a copier from the topic `from` to the topic `to`.
    pub fn start(bootstrap: &str, (from, to): (&str, &str), more: &[&str]) -> CopyProcess {
        let reported = NamedTempFile::new().expect("a file");
        let file = || Stdio::from(reported.as_file().try_clone().expect("a descriptor"));
        let mut command = Command::new(binary());
        command.args(["copy", "--from", from, "--to", to, "--bootstrap-server", bootstrap]).args(more);
        let child = command.stdout(file()).stderr(file()).spawn().expect("the binary starts");
        CopyProcess { child, reported }
    }

    /// Returns everything that the copier has printed so far.
    pub fn reported(&self) -> String {
        std::fs::read_to_string(self.reported.path()).expect("text")
    }

    /// Kills the copier with SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("our child");
    }

    /// Suspends the copier (SIGSTOP), as if its machine hung.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Resumes the copier after [`CopyProcess::freeze`].
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("our child");
    }

    /// Ends the copier with SIGTERM. Returns everything that it has printed.
    pub fn terminate(mut self) -> String {
        self.signal(Signal::TERM);
        self.ended(true)
    }

    /// Waits until the copier ends with success. Returns everything that it has printed.
    pub fn finish(mut self) -> String {
        self.ended(true)
    }

    /// Waits until the copier ends with a failure. Returns everything that it has printed.
    pub fn fails(mut self) -> String {
        self.ended(false)
    }

    fn ended(&mut self, well: bool) -> String {
        let mut status = None;
        wait_until("the copier ends", SOON, || {
            status = self.child.try_wait().expect("our child");
            status.is_some()
        });
        assert_eq!(status.map(|status| status.success()), Some(well), "{}", self.reported());
        self.reported()
    }
}

impl Drop for CopyProcess {
    fn drop(&mut self) {
        let ended = self.child.try_wait();
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("a copier ({ended:?}) printed: {}", self.reported());
        }
    }
}

/// The source and target of a copier, and checks of their records.
pub struct Copied<'a> {
    bootstrap: &'a str,
    from: &'a str,
    to: &'a str,
    partitions: usize,
    /// How many records and markers the target's log must have before [`Copied::goes_on`] returns.
    expected: Cell<usize>,
}

impl<'a> Copied<'a> {
    /// Creates the comparison of two topics that the caller has created.
    pub fn new(bootstrap: &'a str, from: &'a str, to: &'a str, partitions: usize) -> Copied<'a> {
        Copied { bootstrap, from, to, partitions, expected: Cell::new(0) }
    }

    /// Writes records to the source. Some of them have nulls, headers or timestamps. `seed` makes the values unique.
    pub fn fill(&self, records: usize, seed: u64) {
        self.expected.set(self.written());
        let mut random = Random::new(seed);
        // Old records would be deleted, because a broker applies retention 30 s after its start.
        let (mut lines, now) = (String::new(), now_ms());
        for number in 0..records {
            let key = random.below(97);
            let value = if number % 50 == 7 { "null".to_owned() } else { format!("\"{seed} {number}\"") };
            let header = if number % 10 == 3 { ",\"headers\":[{\"key\":\"h\",\"value\":\"1\"}]" } else { "" };
            let (partition, time) = (key % self.partitions, now + number as i64);
            let line =
                format!("\"partition\":{partition},\"timestamp\":{time},\"key\":\"k{key}\",\"value\":{value}{header}");
            writeln!(lines, "{{{line}}}").expect("a string");
        }
        let mut command = Command::new(binary());
        command.args(["produce", "--json", "--topic", self.from, "--bootstrap-server", self.bootstrap]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        child.stdin.take().expect("piped").write_all(lines.as_bytes()).expect("it reads");
        let Output { status, stderr, .. } = child.wait_with_output().expect("our child");
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    }

    /// Returns the records of each partition as a read_committed consumer gets them, without their offsets.
    fn records(&self, topic: &str) -> Vec<Vec<String>> {
        let flags = ["--json", "--exit", "--from-beginning", "--isolation-level", "read_committed"];
        let printed = run(self.bootstrap, &[&["consume", "--topic", topic][..], &flags].concat());
        let mut records = vec![Vec::new(); self.partitions];
        for line in printed.lines() {
            let number = |field: &str| {
                let (_, rest) = line.split_once(&format!("\"{field}\":")).expect("a field");
                rest.split(',').next().expect("a value").to_owned()
            };
            let partition: usize = number("partition").parse().expect("a number");
            let same = line.replacen(&format!("\"offset\":{}", number("offset")), "", 1);
            records[partition].push(same.replacen(&format!("\"topic\":\"{topic}\""), "", 1));
        }
        records
    }

    /// Returns how many records of the target a read_committed consumer gets.
    pub fn count(&self) -> usize {
        self.records(self.to).iter().map(Vec::len).sum()
    }

    /// Returns the sum of the end offsets of the target's partitions.
    pub fn written(&self) -> usize {
        let printed = run(self.bootstrap, &["topics", "offsets", "--topic", self.to]);
        printed.lines().filter_map(|line| line.rsplit(':').next()?.trim().parse::<usize>().ok()).sum()
    }

    /// Waits until the target's log has `records` more entries than the last call waited for, or than [`Copied::fill`]
    /// found if it was called since. Markers count as entries.
    pub fn goes_on(&self, records: usize) {
        self.expected.set(self.expected.get() + records);
        wait_until("the target grows", SOON, || self.written() >= self.expected.get());
    }

    /// Checks that each partition of the target equals the source's partition: every record once and in order. Also
    /// checks that the group has read all of them.
    pub fn check(&self, group: &str) {
        let (read, written) = (self.records(self.from), self.records(self.to));
        for (partition, (read, written)) in read.iter().zip(&written).enumerate() {
            let differs = read.iter().zip(written).position(|(read, written)| read != written);
            let at = differs.unwrap_or(read.len().min(written.len()));
            let (of, are) = (read.get(at), written.get(at));
            assert!(
                read == written,
                "partition {partition}: {} records of {}; at {at}: {are:?}, not {of:?}; {}",
                written.len(),
                read.len(),
                difference(read, written)
            );
        }
        self.check_lag(group);
    }

    /// Waits until the target has `records` records. If it does not get them in time, the test fails with the missing
    /// ones.
    pub fn has(&self, records: usize, group: &str) {
        let started = Instant::now();
        while self.count() < records {
            if started.elapsed() >= SOON {
                self.check(group);
                panic!("{} records of {records} are copied", self.count());
            }
        }
    }

    /// Checks that the target has the same records as the source. They may be in other partitions.
    pub fn check_unordered(&self) {
        let sorted = |topic: &str| {
            let of_all = self.records(topic).concat();
            let strip = |line: String| {
                let (before, after) = line.split_once("\"partition\":").expect("a field");
                format!("{before}{}", after.split_once(',').map_or("", |(_, rest)| rest))
            };
            let mut stripped: Vec<String> = of_all.into_iter().map(strip).collect();
            stripped.sort_unstable();
            stripped
        };
        assert_eq!(sorted(self.from), sorted(self.to));
    }

    fn check_lag(&self, group: &str) {
        let printed = run(self.bootstrap, &["groups", "describe", "--group", group, "--offsets", "--json"]);
        let lags: Vec<&str> =
            printed.split("\"lag\":").skip(1).map(|rest| rest.split([',', '}']).next().unwrap_or("")).collect();
        assert!(!lags.is_empty() && lags.iter().all(|lag| lag.trim() == "0"), "{printed}");
    }
}

/// Lists the records that the target lacks or has several times, by their position in the source.
fn difference(read: &[String], written: &[String]) -> String {
    let mut places: HashMap<&String, Vec<usize>> = HashMap::new();
    written.iter().enumerate().for_each(|(place, record)| places.entry(record).or_default().push(place));
    let of = |record: &String| places.get(record).map_or(&[][..], Vec::as_slice);
    let missing: Vec<usize> = (0..read.len()).filter(|at| of(&read[*at]).is_empty()).collect();
    let twice: Vec<(usize, &[usize])> =
        read.iter().map(of).enumerate().filter(|(_, places)| places.len() > 1).collect();
    format!("missing: {missing:?}; several times, at: {twice:?}")
}
