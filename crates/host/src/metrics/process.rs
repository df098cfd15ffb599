//! Reads figures about this process from the system. Without `/proc`, the memory and the descriptors are unknown.

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::fs;

/// Figures about this process at one moment.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// The memory in use that is not swapped out, in bytes.
    pub resident_bytes: Option<u64>,
    /// The number of open file descriptors.
    pub open_fds: Option<u64>,
    /// Maximum number of open file descriptors; `None` if there is no limit.
    pub max_fds: Option<u64>,
    /// The processor time of all threads, in seconds.
    pub cpu_s: f64,
}

impl Process {
    /// Reads the figures. This takes milliseconds if tens of thousands of descriptors are open.
    pub fn read() -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        Process {
            resident_bytes: fs::read_to_string("/proc/self/status").ok().and_then(|status| resident_bytes(&status)),
            open_fds: open_fds(),
            max_fds: getrlimit(Resource::Nofile).current,
            cpu_s: cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
        }
    }
}

/// Returns the memory from the line `VmRSS: 1234 kB`, in bytes; `None` if there is no such line.
fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

fn open_fds() -> Option<u64> {
    let listed = fs::read_dir("/proc/self/fd").ok()?.count();
    // The listing opens a descriptor of its own, so subtract that one.
    Some((listed as u64).saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_the_line_in_kib() {
        assert_eq!(resident_bytes("Name:\tx\nVmRSS:\t    1234 kB\nThreads: 1\n"), Some(1234 * 1024));
        assert_eq!(resident_bytes("Name:\tx\n"), None);
        assert_eq!(resident_bytes("VmRSS: many kB\n"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn every_figure_is_known_on_linux() {
        let now = Process::read();
        assert!(now.resident_bytes.is_some_and(|bytes| bytes > 64 * 1024));
        assert!(now.open_fds.is_some_and(|fds| fds >= 1));
        assert!(now.cpu_s > 0.0);
    }
}
