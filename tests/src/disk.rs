//! A machine's disk that can be made to hang, and what a power cut leaves of it: ext4 on a loop device that commits its
//! journal when it is asked to, of which the image is copied. What was not flushed is not in the copy, or with holes.
//!
//! Both brokers run in one boot of this machine, so the copy is told that it is another one ([`another_boot`]).

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

const SIZE: u64 = 64 << 20;

/// An image with its file system mounted; unmounted at the end.
pub struct Disk {
    folder: TempDir,
}

impl Disk {
    /// A new file system; `None`, with a line that says so, where that is not permitted.
    pub fn make() -> Option<Disk> {
        let disk = Disk { folder: tempfile::tempdir().expect("a temporary folder") };
        File::create(disk.image()).and_then(|file| file.set_len(SIZE)).expect("a sparse file");
        if run("mkfs.ext4", &["-q", "-F"], &[&disk.image()]) && disk.mount() {
            return Some(disk);
        }
        // Past the capture of `cargo test`, so that a run shows what it left out.
        let _ = writeln!(std::io::stderr(), "skipped: mounting a loop device is not permitted here");
        None
    }

    /// What a power cut leaves of it now.
    pub fn cut_power(&self) -> Disk {
        let disk = Disk { folder: tempfile::tempdir().expect("a temporary folder") };
        assert!(run("cp", &["--sparse=always"], &[&self.image(), &disk.image()]), "the image is copied");
        assert!(disk.mount(), "the copy is mounted");
        disk
    }

    fn mount(&self) -> bool {
        fs::create_dir(self.path()).expect("a new folder");
        run("mount", &["-t", "ext4", "-o", "loop,commit=600"], &[&self.image(), &self.path()])
    }

    /// Has everything in the journal that the file system knows by now.
    pub fn commit(&self) {
        let mut file = File::create(self.path().join("commit")).expect("room");
        file.write_all(b"now").and_then(|()| file.sync_all()).expect("written");
    }

    /// Makes each write to it hang, from now on until what this returns is dropped; reads go on.
    pub fn freeze(&self) -> Frozen<'_> {
        let path = self.path();
        // It thaws the file system once nobody holds its input any more: however this process ends.
        let mut thaws = Command::new("sh");
        thaws.args(["-c", "trap '' TERM INT; cat; fsfreeze --unfreeze \"$0\""]).arg(&path);
        thaws.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let frozen = Frozen { thaws: thaws.spawn().expect("a shell"), _disk: self };
        assert!(run("fsfreeze", &["--freeze"], &[&path]), "a file system of ours is frozen");
        frozen
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("mounted")
    }

    /// For a broker.
    pub fn data(&self) -> PathBuf {
        self.path().join("data")
    }
}

/// A disk that hangs.
pub struct Frozen<'a> {
    thaws: Child,
    _disk: &'a Disk,
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        drop(self.thaws.stdin.take());
        let _ = self.thaws.wait();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        run("umount", &["--lazy"], &[&self.path()]);
    }
}

fn run(program: &str, args: &[&str], paths: &[&Path]) -> bool {
    let mut command = Command::new(program);
    command.args(args).args(paths).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// As if the machine had booted since the broker of this data folder ended.
pub fn another_boot(data: &Path) {
    let path = data.join("boot-id");
    assert!(path.is_file(), "the broker keeps in which boot it has run");
    fs::write(path, "00000000-0000-4000-8000-000000000000\n").expect("ours");
}
