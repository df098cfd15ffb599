use super::*;

fn full() -> io::Error {
    io::ErrorKind::StorageFull.into()
}

#[test]
fn a_full_disk_releases_the_reserve_to_work_that_frees_space_and_takes_it_back() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let reserve = directory.path().join(FILE);
    let space = DiskSpace::open(directory.path(), 1 << 20);
    assert_eq!(fs::metadata(&reserve).expect("there").len(), 1 << 20);
    assert!(space.admit().is_some() && !space.is_full());
    for (enough, tries_needed) in [((1 << 20) - 65536, 2), (1 << 19, 4), (0, 4)] {
        let mut tries = 0;
        let freed = space.freeing(is_full, || {
            tries += 1;
            if space.reserved() > enough { Err(full()) } else { Ok(()) }
        });
        assert!(freed.is_ok() && tries == tries_needed && space.is_full(), "{tries} for {enough}");
        assert_eq!(space.reserved(), 1 << 20, "there is room, so it is taken back at once");
    }
    space.check();
    assert!(!space.is_full(), "what cannot be had is not called room, and what can be is at once");
    space.note_full();
    space.note_written();
    assert!(!space.is_full());
}

#[test]
fn a_released_part_is_not_taken_back_before_the_work_regains_it() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let space = DiskSpace::open(directory.path(), 1 << 20);
    let freed = space.freeing(is_full, || {
        let reserved = space.reserved();
        if reserved == 1 << 20 {
            return Err(full());
        }
        assert!(space.admit().is_none());
        space.check();
        assert_eq!(space.reserved(), reserved, "nobody took it back");
        // The real disk has space, so the reserve can be completed.
        space.regain();
        assert!(space.admit().is_some() && space.reserved() == 1 << 20);
        Ok(())
    });
    assert!(freed.is_ok());
    assert!(space.admit().is_some() && space.reserved() == 1 << 20);
}

#[test]
fn a_reserve_is_whole_blocks_and_at_most_a_sixteenth() {
    for (configured, total, kept) in [
        (0, 1 << 30, 0),
        (1, 1 << 30, BLOCK),
        (5000, 1 << 30, 2 * BLOCK),
        (8 << 20, 1 << 30, 8 << 20),
        (8 << 20, 48 << 20, 3 << 20),
        (u64::MAX, 1 << 30, 64 << 20),
        (u64::MAX, u64::MAX, u64::MAX / SHARE / BLOCK * BLOCK),
        (8 << 20, 1000, 0),
    ] {
        assert_eq!(reserve_of(configured, total), kept, "{configured} of {total}");
    }
}

#[test]
fn the_last_log_line_gives_the_state_of_the_disk() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let space = DiskSpace::open(directory.path(), 0);
    let says_full = || space.times.lock().says_full;
    space.note_full();
    assert!(says_full());
    space.note_written();
    space.check();
    assert!(!space.is_full() && says_full(), "it may be the last of it");
    space.note_full();
    assert!(space.times.lock().room.is_none() && says_full());
    space.note_written();
    space.times.lock().room = Instant::now().checked_sub(ROOM_LOGGED_AFTER);
    space.check();
    assert!(!says_full());
    space.note_full();
    assert!(says_full(), "however soon it is full again");
}

#[test]
fn a_write_without_room_makes_room_ample_only_after_the_next_poll() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let space = DiskSpace::open(directory.path(), 4096);
    assert_eq!(space.room(), DiskRoom::Ample);
    space.note_full();
    assert_eq!(space.room(), DiskRoom::Full);
    space.note_written();
    assert_eq!(space.room(), DiskRoom::Tight, "it may be the last of it");
    space.check();
    assert_eq!(space.room(), DiskRoom::Ample);
    let narrow = DiskSpace::without_room(directory.path());
    narrow.check();
    assert_ne!(narrow.room(), DiskRoom::Ample, "the reserve is not whole");
}

#[test]
fn a_failed_append_makes_the_directory_unwritable_until_a_file_can_be_made() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let data = directory.path().join("data");
    fs::create_dir(&data).expect("made");
    let space = DiskSpace::open(&data, 0);
    space.note_failed();
    space.check();
    assert_eq!(space.room(), DiskRoom::Ample, "another reason");
    // Not even root can create a file under the name of a directory.
    let obstacle = data.join("new-file-probe");
    fs::create_dir(&obstacle).expect("made");
    space.check();
    assert_eq!(space.room(), DiskRoom::Ample, "nothing has failed");
    space.note_failed();
    space.check();
    assert_eq!((space.room(), space.is_full()), (DiskRoom::Unwritable, false));
    fs::remove_dir(&obstacle).expect("removed");
    space.check();
    assert_eq!(space.room(), DiskRoom::Ample);
    assert_eq!(fs::read_dir(&data).expect("read").count(), 0, "no probe is left");
}

#[test]
fn other_errors_leave_the_reserve_alone() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let space = DiskSpace::open(directory.path(), 4096);
    let refused = space.freeing(is_full, || {
        assert!(directory.path().join(FILE).exists());
        Err::<(), _>(io::Error::from(io::ErrorKind::NotFound))
    });
    assert!(refused.is_err() && !space.is_full());
}

#[test]
fn a_reserve_of_zero_bytes_admits_every_writer() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let space = DiskSpace::open(directory.path(), 0);
    assert!(space.admit().is_some() && space.freeing(is_full, || Ok::<_, io::Error>(1)).is_ok());
    assert!(!directory.path().join(FILE).exists());
}

#[test]
fn data_directory_with_another_at_its_path_takes_no_files_until_it_is_back() {
    let parent = tempfile::tempdir().expect("temporary directory");
    let (data, away) = (parent.path().join("data"), parent.path().join("away"));
    fs::create_dir(&data).expect("made");
    let space = DiskSpace::open(&data, 0);
    space.check();
    assert_eq!(space.room(), DiskRoom::Ample);
    fs::rename(&data, &away).expect("moved");
    for is_replaced in [false, true] {
        if is_replaced {
            fs::create_dir(&data).expect("made");
        }
        space.check();
        assert!(space.is_unwritable(), "{is_replaced}");
        assert_eq!(space.room(), DiskRoom::Unwritable);
    }
    assert_eq!(fs::read_dir(&data).expect("listed").count(), 0, "the other directory stays as it is");
    fs::remove_dir(&data).expect("removed");
    fs::rename(&away, &data).expect("moved back");
    space.check();
    assert_eq!(space.room(), DiskRoom::Ample);
}
