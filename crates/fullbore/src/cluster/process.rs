//! A process that outlives the command. It has a log, a pid file, and its own session, so that it survives the
//! terminal.
//!
//! Invariant: a signal is sent only to a process with the expected command line, since pids are reused.

use crate::failure::Failure;
use crate::waiting::Wait;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, setsid};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How often a process is checked.
pub const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How many bytes at the end of a log are read.
const LOG_BYTES: u64 = 64 << 10;
/// The flag of a process that is ending and no longer runs its program (`PF_EXITING` in Linux's `sched.h`).
const EXITING: u64 = 4;

/// The identity of a process, which need not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Daemon {
    /// The name of the process, such as `broker 2`.
    pub name: String,
    /// The file whose first line is the pid.
    pub pid_file: PathBuf,
    /// Successive words of the command line by which this process is recognised.
    pub words: Vec<OsString>,
    /// The file that gets standard output and standard error.
    pub log: PathBuf,
}

impl Daemon {
    /// Returns the pid of the process, or `None` if it does not run. A process that is ending counts as running,
    /// because its files, ports and locks are not free yet.
    pub fn pid(&self) -> Option<Pid> {
        let text = fs::read_to_string(&self.pid_file).ok()?;
        let pid = Pid::from_raw(text.lines().next()?.trim().parse().ok().filter(|pid| *pid > 0)?)?;
        let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).ok()?;
        if line.is_empty() {
            return is_ending(pid).then_some(pid);
        }
        let line: Vec<&OsStr> = line.split(|byte| *byte == 0).map(OsStr::from_bytes).collect();
        line.windows(self.words.len()).any(|some| some == &self.words[..]).then_some(pid)
    }

    /// Starts the process. Its output is appended to the log.
    ///
    /// # Errors
    /// Returns the system's error if the log cannot be opened, or if the program cannot be started.
    pub fn start(&self, mut command: Command) -> io::Result<StartedProcess> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        let begins = log.metadata()?.len();
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // SAFETY: between fork and exec, this closure makes one system call. It allocates nothing and takes no lock.
        unsafe { command.pre_exec(|| setsid().map(drop).map_err(io::Error::from)) };
        let child = command.spawn()?;
        Ok(StartedProcess { daemon: self.clone(), child, begins })
    }

    /// Starts the process, which writes its pid to the pid file before it runs its program. If this command is killed,
    /// later commands therefore know each process that it has started.
    ///
    /// # Errors
    /// Returns a sentence if the pid file cannot be written, or if the program cannot be started.
    pub fn start_noted(&self, mut command: Command) -> Result<StartedProcess, Failure> {
        let pid_file = File::create(&self.pid_file)
            .map_err(|error| Failure::new(format!("cannot write {}: {error}", self.pid_file.display())))?;
        // SAFETY: between fork and exec, this closure formats a number into a buffer on the stack and makes two system
        // calls. It allocates nothing and takes no lock.
        unsafe { command.pre_exec(move || write_pid(&pid_file)) };
        self.start(command).map_err(|error| {
            // If the file cannot be removed, later commands recognise that no process has this pid.
            let _ = fs::remove_file(&self.pid_file);
            Failure::new(format!("cannot start {}: {error}", self.name))
        })
    }

    /// Returns true if the pid file names a process of this kind that runs with a file in another directory. The user
    /// has then copied the directory, or has moved it while the process was running.
    pub fn may_run_elsewhere(&self) -> bool {
        let text = fs::read_to_string(&self.pid_file).unwrap_or_default();
        let pid = text.lines().next().and_then(|line| line.trim().parse().ok()).filter(|pid| *pid > 0);
        let line = pid.and_then(|pid: i32| fs::read(format!("/proc/{pid}/cmdline")).ok()).unwrap_or_default();
        let words: Vec<&OsStr> = line.split(|byte| *byte == 0).map(OsStr::from_bytes).collect();
        let own = self.words.split_last().map_or(&[][..], |(_, before)| before);
        self.pid().is_none() && !own.is_empty() && words.windows(own.len()).any(|some| some == own)
    }

    /// Returns true if a signal has stopped the process (SIGSTOP), so that it handles no other signal but SIGKILL.
    pub fn is_stopped(&self) -> bool {
        self.pid().is_some_and(is_stopped)
    }

    /// Sends a signal to the process. Returns true if the process was running.
    pub fn signal(&self, signal: Signal) -> bool {
        // `kill_process` fails if the process has just ended.
        self.pid().is_some_and(|pid| kill_process(pid, signal).is_ok())
    }
}

/// Writes the pid of the calling process to this file. Allocates nothing.
fn write_pid(file: &File) -> io::Result<()> {
    let mut text = Cursor::new([0_u8; 16]);
    writeln!(text, "{}", std::process::id())?;
    let length = text.position() as usize;
    file.write_all_at(&text.get_ref()[..length], 0)
}

/// Returns true if a signal has stopped this process (see [`Daemon::is_stopped`]).
pub fn is_stopped(pid: Pid) -> bool {
    state(pid).is_some_and(|state| state == "T")
}

/// Returns the letter of a process's state, as in Linux's `stat`.
fn state(pid: Pid) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The program's name is skipped. It is in parentheses and may contain spaces.
    stat.rsplit(')').next()?.split_whitespace().next().map(str::to_owned)
}

/// Returns true if a process without a command line is ending: the kernel has freed its memory, but not yet its files.
/// Zombies and kernel threads have no command line either. For them, returns false.
fn is_ending(pid: Pid) -> bool {
    // The pidfd is opened before `stat` is read, and polled after that. If the pid was reused in between, the poll
    // reports that the old process has ended.
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    let Ok(stat) = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())) else { return false };
    // The program's name is skipped. It is in parentheses and may contain spaces.
    let flags = stat.rsplit(')').next().and_then(|fields| fields.split_whitespace().nth(6)?.parse::<u64>().ok());
    let mut ended = [PollFd::new(&process, PollFlags::IN)];
    flags.is_some_and(|flags| flags & EXITING != 0) && poll(&mut ended, Some(&Timespec::default())) == Ok(0)
}

/// Waits until all these processes have ended, and reports a long wait. Returns those that still run after `patience`.
pub fn wait_until_gone<'a>(of: impl IntoIterator<Item = &'a Daemon>, patience: Duration) -> Vec<&'a Daemon> {
    wait_while(of.into_iter().collect(), patience, |daemon| daemon.pid().is_some(), |daemon| daemon.name.clone())
}

/// Waits like [`wait_until_gone`] for processes that this command has started. Needs no pid files.
pub fn wait_until_ended(of: &mut [StartedProcess], patience: Duration) -> Vec<&mut StartedProcess> {
    wait_while(of.iter_mut().collect(), patience, |of| of.pid().is_some(), |of| of.daemon.name.clone())
}

fn wait_while<T>(
    mut left: Vec<T>,
    patience: Duration,
    mut runs: impl FnMut(&mut T) -> bool,
    name: impl Fn(&T) -> String,
) -> Vec<T> {
    let until = Instant::now() + patience;
    let mut wait = Wait::begin();
    loop {
        left.retain_mut(&mut runs);
        if left.is_empty() || Instant::now() > until {
            return left;
        }
        wait.observe(|| {
            let names: Vec<String> = left.iter().map(&name).collect();
            format!("{} to end", names.join(", "))
        });
        std::thread::sleep(LOOK_EVERY);
    }
}

/// A process that this command has started.
pub struct StartedProcess {
    pub daemon: Daemon,
    pub child: Child,
    /// The size of the log before the process was started, which is the offset of its first line.
    begins: u64,
}

impl StartedProcess {
    /// Returns the pid of the process, or `None` if it has ended. Does not read the pid file, which may not be written
    /// yet.
    pub fn pid(&mut self) -> Option<Pid> {
        let is_over = !matches!(self.child.try_wait(), Ok(None));
        // The system does not reuse the pid before `try_wait` reports the end.
        if is_over { None } else { Pid::from_raw(self.child.id().cast_signed()) }
    }

    /// Sends a signal to the process, unless it has ended.
    pub fn signal(&mut self, signal: Signal) {
        // `kill_process` fails if the process has just ended.
        let _ = self.pid().map(|pid| kill_process(pid, signal));
    }

    /// Returns `None` while the process runs, and then a sentence about its end, with the last lines of its log.
    ///
    /// # Errors
    /// Returns the system's error if the state cannot be read.
    pub fn ended(&mut self) -> io::Result<Option<String>> {
        let Some(status) = self.child.try_wait()? else { return Ok(None) };
        let Daemon { name, log, .. } = &self.daemon;
        let lines = self.last_lines(10);
        let how = status.code().map_or_else(|| status.to_string(), |code| format!("status {code}"));
        let log = log.display();
        Ok(Some(match lines.is_empty() {
            true => format!("{name} ended with {how}; its log {log} is empty"),
            false => format!("{name} ended with {how}; {log}:\n{}", lines.join("\n")),
        }))
    }

    /// Returns the last lines that the process has logged, at most `count`.
    pub fn last_lines(&self, count: usize) -> Vec<String> {
        // If the log has been removed, there are no lines.
        let text = tail(&self.daemon.log, self.begins).unwrap_or_default();
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(count)..].iter().map(|line| format!("  {line}")).collect()
    }
}

fn tail(path: &Path, begins: u64) -> io::Result<String> {
    let mut file = File::open(path)?;
    let end = file.metadata()?.len();
    file.seek(SeekFrom::Start(begins.max(end.saturating_sub(LOG_BYTES))))?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn daemon(directory: &Path, words: &[&str]) -> Daemon {
        Daemon {
            name: "broker 7".to_owned(),
            pid_file: directory.join("pid"),
            words: words.iter().map(OsString::from).collect(),
            log: directory.join("log"),
        }
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script, "serve", "--config", "x"]);
        command
    }

    #[test]
    fn a_reused_pid_is_not_taken_for_the_process() {
        let directory = tempfile::tempdir().expect("a directory");
        let known = daemon(directory.path(), &["serve", "--config", "x"]);
        assert_eq!(known.pid(), None, "no file");
        let mut started = known.start(shell("while :; do sleep 0.05; done")).expect("there is a shell");
        for wrong in ["", "0", "-1", "one", "99999999"] {
            fs::write(&known.pid_file, wrong).expect("written");
            assert_eq!(known.pid(), None, "{wrong}");
        }
        fs::write(&known.pid_file, format!("{}\nmore", std::process::id())).expect("written");
        assert_eq!(known.pid(), None, "another program");
        started.child.kill().expect("ours");
        started.child.wait().expect("ended");
    }

    #[test]
    fn a_process_in_a_moved_directory_is_not_taken_for_a_stale_pid() {
        let directory = tempfile::tempdir().expect("a directory");
        let known = daemon(directory.path(), &["serve", "--config", "x"]);
        let moved = daemon(directory.path(), &["serve", "--config", "y"]);
        assert!(!moved.may_run_elsewhere(), "no file");
        let mut started = known.start(shell("while :; do sleep 0.05; done")).expect("there is a shell");
        // Waits until the kernel shows the command line, which may be only after `spawn` has returned.
        while fs::read(format!("/proc/{}/cmdline", started.child.id())).expect("ours").is_empty() {
            std::thread::sleep(LOOK_EVERY);
        }
        fs::write(&known.pid_file, started.child.id().to_string()).expect("written");
        assert_eq!((moved.pid(), moved.may_run_elsewhere(), known.may_run_elsewhere()), (None, true, false));
        fs::write(&known.pid_file, std::process::id().to_string()).expect("written");
        assert!(!moved.may_run_elsewhere(), "another program");
        started.child.kill().expect("ours");
        started.child.wait().expect("ended");
    }

    #[test]
    fn a_process_has_a_session_and_a_log_of_its_own_and_ends_at_a_signal() {
        let directory = tempfile::tempdir().expect("a directory");
        let known = daemon(directory.path(), &["serve", "--config", "x"]);
        fs::write(&known.log, "before\n").expect("written");
        let script =
            "cut -d' ' -f5,6 /proc/self/stat; echo $$; trap 'echo bye; exit 3' TERM; while :; do sleep 0.05; done";
        let mut started = known.start(shell(script)).expect("there is a shell");
        let pid = started.child.id();
        fs::write(&known.pid_file, pid.to_string()).expect("written");
        while started.last_lines(10).len() < 2 {
            assert_eq!(started.ended().expect("ours"), None);
            std::thread::sleep(LOOK_EVERY);
        }
        // Process group and session have the pid of the process as their number, so the process is not in the test's
        // session.
        assert_eq!(started.last_lines(10), [format!("  {pid} {pid}"), format!("  {pid}")]);
        assert_eq!(known.pid(), Pid::from_raw(pid as i32));
        assert!(known.signal(Signal::TERM));
        assert!(wait_until_gone([&known], Duration::from_secs(10)).is_empty());
        let reported = started.ended().expect("ours").expect("ended");
        let log = known.log.display();
        assert_eq!(reported, format!("broker 7 ended with status 3; {log}:\n  {pid} {pid}\n  {pid}\n  bye"));
        assert!(!known.signal(Signal::TERM));
    }
    /// Imitates a process whose memory is freed but whose files the kernel has not closed yet. Its first thread has
    /// ended, but another one has not.
    #[test]
    fn an_ending_process_counts_as_running() {
        let directory = tempfile::tempdir().expect("a directory");
        let known = daemon(directory.path(), &["serve", "--config", "x"]);
        let script = "import ctypes, sys, threading\nthreading.Thread(target=sys.stdin.read).start()\n\
                      ctypes.CDLL(None).pthread_exit(None)";
        let mut command = Command::new("python3");
        command.args(["-c", script, "serve", "--config", "x"]).stdin(Stdio::piped());
        let mut child = command.spawn().expect("Python is there, as for the clients' tests");
        let pid = Pid::from_raw(child.id() as i32).expect("a pid");
        fs::write(&known.pid_file, child.id().to_string()).expect("written");
        while !is_ending(pid) {
            assert_eq!(child.try_wait().expect("ours"), None);
            std::thread::sleep(LOOK_EVERY);
        }
        assert_eq!(known.pid(), Some(pid));
        assert_eq!(wait_until_gone([&known], Duration::ZERO), [&known]);
        drop(child.stdin.take());
        assert!(wait_until_gone([&known], Duration::from_secs(10)).is_empty());
        assert!(child.try_wait().expect("ours").is_some());
    }
}
