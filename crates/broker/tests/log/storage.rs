//! Tests a full disk: no record is written partially, no acknowledged record is lost, and space that becomes free is
//! used.

use std::path::Path;
use std::process::Command;

use fullbore_broker::partitions::AppendError;
use fullbore_wire::batch::{Compression, Stamp};

use crate::directory::*;

/// A file system of 1 MiB that is unmounted when dropped. Mounting it needs root.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<SmallDisk> {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(dir.path()).output();
        mount.is_ok_and(|output| output.status.success()).then(|| SmallDisk(dir))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn full_disk_refuses_batches_until_there_is_space() {
    let Some(disk) = SmallDisk::mount() else {
        eprintln!("skipped: mounting a small tmpfs needs root");
        return;
    };
    let ballast = disk.path().join("ballast");
    std::fs::write(&ballast, vec![0; 300_000]).expect("written");
    let mut directory = Directory::at(disk.path()).with(|config| config.segment_bytes = 100_000);
    let partition = directory.partition();
    let mut next = 0;
    let full = loop {
        match append(&partition, &batch(next)) {
            Ok(appended) => assert_eq!(appended.base_offset, i64::from(next)),
            Err(error) => break error,
        }
        next += 1;
        assert!(next < 200, "the disk never fills");
    };
    assert_eq!(full, AppendError::Full);
    assert_eq!(read_all(&partition, 0).len(), next as usize, "what was acknowledged is there");
    assert_eq!(append(&partition, &batch(next)).expect_err("still full"), AppendError::Full);

    std::fs::remove_file(&ballast).expect("removed");
    for n in next..next + 10 {
        assert_eq!(offset(&partition, &batch(n)), i64::from(n));
    }
    let last = next + 9;
    assert_eq!(offset(&partition, &batch(last)), i64::from(last), "sequences go on as if nothing had happened");
    assert_eq!(read_all(&partition, 0).len(), next as usize + 10);
    drop(partition);
    assert_eq!(read_all(&directory.crash(), 0).len(), next as usize + 10);
    assert_eq!(read_all(&directory.restart(), 0).len(), next as usize + 10);
}

/// Records behind a hole are copied before they are truncated, but here the disk has no space for the copy. Until there
/// is space, the log must be refused and must not change.
#[test]
fn records_that_cannot_be_set_aside_are_refused_until_there_is_space() {
    let Some(disk) = SmallDisk::mount() else {
        eprintln!("skipped: mounting a small tmpfs needs root");
        return;
    };
    let mut directory = Directory::at(disk.path());
    let partition = directory.partition();
    (0..60).for_each(|n| assert_eq!(offset(&partition, &batch(n)), i64::from(n)));
    drop(partition);
    let path = directory.file("00000000000000000000.log");
    let mut bytes = std::fs::read(&path).expect("read");
    bytes[20_000..24_096].fill(0);
    std::fs::write(&path, &bytes).expect("written");

    let files = directory.files("");
    let partition = directory.power_cut();
    assert_eq!(append(&partition, &batch(2)).expect_err("refused"), AppendError::Storage);
    drop(partition);
    assert!(std::fs::read(&path).expect("read") == bytes, "nothing is changed");
    assert_eq!(directory.files(""), files, "and nothing is left");

    let grown = Command::new("mount").args(["-o", "remount,size=4m"]).arg(disk.path()).status().expect("run");
    assert!(grown.success());
    let partition = directory.crash();
    assert_eq!(offset(&partition, &batch(2)), 2);
    assert!(
        std::fs::read(directory.file("00000000000000000002.log.aside-1")).expect("read")[..]
            == bytes[bytes.len() / 60 * 2..]
    );
}

fn batch(n: i32) -> bytes::BytesMut {
    let stamp = Stamp { producer_id: 1, producer_epoch: 0, base_sequence: n };
    timed(stamp, Compression::None, &[NOW], &[n as u8; 9000])
}
