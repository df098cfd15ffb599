//! A disk that a test can freeze, or copy in the state that a power loss would leave. It is an ext4 file system on a
//! loop device. To imitate a power loss, the test copies the device's image. In the copy, data that was not flushed is
//! missing or has holes. The test decides when the file system commits its journal.
//!
//! The machine does not reboot between the two brokers of a test. Therefore the copy gets another boot id
//! ([`another_boot`]).

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

const SIZE: u64 = 64 << 20;
/// The journal's size in MiB and its first block. The journal lies before all files, because [`Disk::lose_end_of`] cuts
/// off the end of the image. If the journal were at the end, its next commit would let the image grow again, and the
/// lost part would be read as zeros.
const JOURNAL: &str = "size=4,location=4096";

/// A disk image with its mounted file system. Dropping it unmounts the file system.
pub struct Disk {
    directory: TempDir,
}

impl Disk {
    /// Creates a file system. `None` if mounting is not permitted, which is reported on standard error.
    pub fn make() -> Option<Disk> {
        let disk = Disk { directory: tempfile::tempdir().expect("a temporary directory") };
        File::create(disk.image()).and_then(|file| file.set_len(SIZE)).expect("a sparse file");
        if run("mkfs.ext4", &["-q", "-F", "-b1024", "-J", JOURNAL], &[&disk.image()]) && disk.mount() {
            return Some(disk);
        }
        // Writes to the stream directly, because `cargo test` captures `eprintln!`. Each run must show which tests were
        // skipped.
        let _ = writeln!(std::io::stderr(), "skipped: mounting a loop device is not permitted here");
        None
    }

    /// Returns a copy of this disk, in the state that a power loss at this moment would leave.
    pub fn cut_power(&self) -> Disk {
        let disk = Disk { directory: tempfile::tempdir().expect("a temporary directory") };
        assert!(run("cp", &["--sparse=always"], &[&self.image(), &disk.image()]), "the image is copied");
        assert!(disk.mount(), "the copy is mounted");
        disk
    }

    fn mount(&self) -> bool {
        fs::create_dir(self.path()).expect("a new directory");
        run("mount", &["-t", "ext4", "-o", "loop,commit=600"], &[&self.image(), &self.path()])
    }

    /// Commits all changes of the file system to its journal.
    pub fn commit(&self) {
        let mut file = File::create(self.path().join("commit")).expect("room");
        file.write_all(b"now").and_then(|()| file.sync_all()).expect("written");
    }

    /// Blocks all writes until the returned value is dropped. Reads still work.
    pub fn freeze(&self) -> Frozen<'_> {
        let path = self.path();
        // The child thaws the file system when its input is closed, which happens however this process ends.
        let mut thaws = Command::new("sh");
        thaws.args(["-c", "trap '' TERM INT; cat; fsfreeze --unfreeze \"$0\""]).arg(&path);
        thaws.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let frozen = Frozen { thaws: thaws.spawn().expect("a shell"), _disk: self };
        assert!(run("fsfreeze", &["--freeze"], &[&path]), "a file system of ours is frozen");
        frozen
    }

    /// Makes the end of a file unreadable, from the middle of its last extent on. All later blocks of the disk become
    /// unreadable, too. The file must not be in the page cache.
    ///
    /// # Panics
    /// Panics if the file has no blocks.
    pub fn lose_end_of(&self, file: &Path) -> LostEnd<'_> {
        let output = Command::new("filefrag").args(["-v", "-b4096"]).arg(file).output().expect("e2fsprogs has it");
        let text = String::from_utf8(output.stdout).expect("text");
        // A line has the number of the extent, its logical blocks, its physical blocks, and its length.
        let last = text.lines().rev().find(|line| line.contains("eof")).expect("an extent");
        let numbers: Vec<u64> = last.split([' ', ':', '.']).filter_map(|word| word.parse().ok()).collect();
        let (first, end) = (numbers[3], numbers[4]);
        let position = (first + end) / 2 * 4096;
        let image = File::options().read(true).write(true).open(self.image()).expect("ours");
        let mut bytes = vec![0; usize::try_from(SIZE - position).expect("small")];
        image.read_exact_at(&mut bytes, position).expect("the end of the image");
        image.set_len(position).expect("shorter");
        LostEnd { disk: self, position, bytes }
    }

    /// Makes the file system read-only, as the kernel does after an error of the disk.
    pub fn fail(&self) {
        let path = self.path();
        let device = Command::new("findmnt").args(["-n", "-o", "SOURCE"]).arg(&path).output().expect("it runs");
        let device = String::from_utf8(device.stdout).expect("text");
        let name = device.trim().rsplit('/').next().expect("a name");
        assert!(run("mount", &["-o", "remount,errors=remount-ro"], &[&path]), "a file system of ours");
        fs::write(format!("/sys/fs/ext4/{name}/trigger_fs_error"), "1").expect("ext4 has this file");
    }

    fn image(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    /// Returns the mount point.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("mounted")
    }

    /// Returns the data directory of a broker on the disk.
    pub fn data(&self) -> PathBuf {
        self.path().join("data")
    }
}

/// A part of a disk that cannot be read.
pub struct LostEnd<'a> {
    disk: &'a Disk,
    position: u64,
    bytes: Vec<u8>,
}

impl LostEnd<'_> {
    /// Makes the part readable again.
    pub fn give_back(self) {
        let image = File::options().write(true).open(self.disk.image()).expect("ours");
        // Writing the saved bytes back undoes any writes to these blocks since then. Tests must not rely on such
        // writes.
        image.write_all_at(&self.bytes, self.position).expect("room");
    }
}

/// A disk whose writes are blocked.
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

/// Changes the boot id in a data directory, as if the machine had rebooted since the broker's end.
pub fn another_boot(data: &Path) {
    let path = data.join("boot-id");
    assert!(path.is_file(), "the broker keeps in which boot it has run");
    fs::write(path, "00000000-0000-4000-8000-000000000000\n").expect("ours");
}
