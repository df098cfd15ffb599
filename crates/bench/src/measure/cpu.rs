//! Reads the processor time of the client and of brokers on this machine, as Linux counts it. On other systems it is
//! unknown.
//!
//! Invariant: a thread's time counts for the client or for the broker, never for both. The time of threads that
//! simulate a link counts for neither.

use rustix::param::clock_ticks_per_second;
use rustix::thread::gettid;
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::net::{TcpListener, ToSocketAddrs};

/// The name of the threads that simulate links and run timers. Their time counts for neither the client nor the broker.
pub const LINK_THREAD: &str = "link";
/// The name of the producer's thread, cut to the 15 bytes that Linux keeps.
const PRODUCER_THREAD: &str = "fullbore-produc";
/// The state of a listening socket in `/proc/net/tcp`.
const LISTENS: &str = "0A";
/// The column of a socket's inode in `/proc/net/tcp`.
const INODE: usize = 9;

/// The processes in which the measured brokers run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrokerPlace {
    /// The brokers run in this process.
    Inside,
    /// The brokers are these processes of this machine.
    Processes(Vec<u32>),
    /// The brokers run on another machine, or the system does not count processor time.
    Unknown,
}

/// The processor seconds that were used since each process started. `None` if they are unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuTimes {
    /// The seconds of the calling thread and of the producer's thread.
    pub client: Option<f64>,
    /// The seconds of the brokers.
    pub broker: Option<f64>,
}

impl BrokerPlace {
    /// Finds the brokers that listen at these addresses. The result is `Unknown` unless all are on this machine.
    pub fn of(addresses: &[(String, u16)]) -> BrokerPlace {
        let found: Option<Vec<u32>> = addresses.iter().map(|(host, port)| process_at(host, *port)).collect();
        let Some(mut processes) = found.filter(|processes| !processes.is_empty()) else { return BrokerPlace::Unknown };
        processes.sort_unstable();
        processes.dedup();
        match processes[..] {
            [only] if only == std::process::id() => BrokerPlace::Inside,
            _ => BrokerPlace::Processes(processes),
        }
    }
}

impl CpuTimes {
    /// Reads the times from the system.
    pub fn read(brokers: &BrokerPlace) -> CpuTimes {
        let (client, link) = threads().unzip();
        let broker = match brokers {
            BrokerPlace::Inside => client.zip(link).map(|(client, link)| (own_seconds() - client - link).max(0.0)),
            BrokerPlace::Processes(processes) => processes.iter().map(|process| seconds_of(*process)).sum(),
            BrokerPlace::Unknown => None,
        };
        CpuTimes { client, broker }
    }

    /// Returns how many processors were in use on average since `before`, which was `seconds` ago.
    #[must_use]
    pub fn since(self, before: CpuTimes, seconds: f64) -> CpuTimes {
        let used = |now: Option<f64>, before: Option<f64>| Some((now? - before?).max(0.0) / seconds);
        CpuTimes { client: used(self.client, before.client), broker: used(self.broker, before.broker) }
    }
}

/// Returns two sums of processor seconds, of the client's threads and of the threads that simulate links. Returns
/// `None` if the system does not count them.
fn threads() -> Option<(f64, f64)> {
    let caller = gettid().as_raw_nonzero().to_string();
    let (mut client, mut link, mut is_known) = (0.0, 0.0, false);
    for thread in fs::read_dir("/proc/self/task").ok()?.flatten() {
        // If a thread has ended since it was listed, it counts only in the time of the process.
        let Ok(name) = fs::read_to_string(thread.path().join("comm")) else { continue };
        let Ok(times) = fs::read_to_string(thread.path().join("schedstat")) else { continue };
        let seconds = times.split(' ').next()?.parse::<f64>().ok()? / 1e9;
        match name.trim_end() {
            LINK_THREAD => link += seconds,
            PRODUCER_THREAD => client += seconds,
            _ if thread.file_name().to_str() == Some(&caller) => {
                client += seconds;
                is_known = true;
            }
            _ => {}
        }
    }
    is_known.then_some((client, link))
}

fn own_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the seconds of all threads of a process, or `None` if they are unknown.
fn seconds_of(process: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The fields follow the process name. The name is in parentheses, and may itself contain parentheses and spaces.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(ticks as f64 / clock_ticks_per_second() as f64)
}

/// Returns the process that listens at an address, or `None` if the address is on another machine.
fn process_at(host: &str, port: u16) -> Option<u32> {
    let mut found = (host, port).to_socket_addrs().ok()?;
    // Binding a socket fails if the address belongs to another machine.
    found.find(|address| TcpListener::bind((address.ip(), 0)).is_ok())?;
    let sockets: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .into_iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| table.lines().filter_map(|line| listener(line, port)).collect::<Vec<_>>())
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    let has_one = |process: &u32| {
        let files = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        let mut links = files.filter_map(|file| fs::read_link(file.path()).ok());
        links.any(|link| link.to_str().is_some_and(|link| sockets.iter().any(|socket| socket == link)))
    };
    let processes = fs::read_dir("/proc").ok()?.flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(has_one)
}

/// Returns the inode in a line of `/proc/net/tcp` if its socket listens on this port.
fn listener(line: &str, port: u16) -> Option<String> {
    let columns: Vec<&str> = line.split_whitespace().collect();
    let at = columns.get(1)?.rsplit_once(':')?.1;
    let listens = columns.get(3) == Some(&LISTENS) && u16::from_str_radix(at, 16) == Ok(port);
    listens.then(|| columns.get(INODE).map(|inode| (*inode).to_owned()))?
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_listener_of_this_process_is_inside_and_a_free_port_is_unknown() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let at = |port: u16| BrokerPlace::of(&[("127.0.0.1".to_owned(), port)]);
        assert_eq!(at(port), BrokerPlace::Inside);
        drop(listener);
        assert_eq!(at(port), BrokerPlace::Unknown);
        assert_eq!(BrokerPlace::of(&[("192.0.2.1".to_owned(), port)]), BrokerPlace::Unknown, "it is not here");
        assert_eq!(BrokerPlace::of(&[]), BrokerPlace::Unknown);
    }

    #[test]
    fn a_line_of_the_table_is_read() {
        let line =
            "   0: 0100007F:2382 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0";
        assert_eq!(listener(line, 9090), Some("4711".to_owned()));
        assert_eq!(listener(line, 9091), None);
        assert_eq!(listener(&line.replace(" 0A ", " 01 "), 9090), None, "a connection");
    }

    #[test]
    fn the_caller_works_its_time_is_the_clients() {
        let before = CpuTimes::read(&BrokerPlace::Inside);
        if before.client.is_none() {
            // The kernel does not count the time of threads, so there is nothing to test.
            return;
        }
        let mut sum = 0u64;
        while CpuTimes::read(&BrokerPlace::Inside).client <= before.client.map(|client| client + 0.01) {
            sum = std::hint::black_box(sum + 1);
        }
        let used = CpuTimes::read(&BrokerPlace::Inside).since(before, 1.0);
        assert!(used.client.is_some_and(|client| client >= 0.01) && used.broker.is_some(), "{used:?}");
    }

    #[test]
    fn another_process_works_its_time_is_the_brokers() {
        let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().expect("sh");
        let place = BrokerPlace::Processes(vec![busy.id()]);
        while CpuTimes::read(&place).broker.is_some_and(|broker| broker == 0.0) {
            std::thread::yield_now();
        }
        let found = CpuTimes::read(&place).broker;
        busy.kill().expect("it runs");
        busy.wait().expect("it ends");
        assert!(found.is_some_and(|broker| broker > 0.0), "{found:?}");
        assert_eq!(CpuTimes::read(&place).broker, None, "it has gone");
    }
}
