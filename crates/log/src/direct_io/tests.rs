use super::direct::{Buffers, read_around};
use super::piece::PIECES_MAX;
use super::*;
use rustix::fs::{Advice, fadvise};

const LEN: usize = (3 << 20) + 1234;

fn written() -> (tempfile::TempDir, Arc<File>, Vec<u8>) {
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("temporary directory");
    let path = directory.path().join("log");
    let bytes: Vec<u8> = (0..LEN as u32).map(|at| at.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    std::fs::write(&path, &bytes).expect("written");
    let file = Arc::new(File::open(&path).expect("opened"));
    file.sync_all().expect("on disk");
    (directory, file, bytes)
}

#[tokio::test]
async fn bytes_in_memory_are_left_to_sendfile_and_others_are_read_from_the_file() {
    let (_directory, file, bytes) = written();
    let cold = DirectReads::default();
    assert!(cold.read(&file, 0, LEN, LEN as u64).await.expect("read").is_none(), "just written");
    fadvise(&*file, 0, None, Advice::DontNeed).expect("advice is taken");
    if is_resident(&file, 0, LEN) {
        eprintln!("files here are always in memory: nothing is shown");
        return;
    }
    for (position, len) in [(0, 1), (1, 4095), (4095, 2), (70_000, 300_000), (1 << 20, PIECE_MAX)] {
        let part = cold.read(&file, position as u64, len, LEN as u64).await.expect("read").expect("not in memory");
        assert!(*part == bytes[position..position + len], "{len} from {position}");
    }
    for (position, len) in [(1_usize << 20, LEN), (5, PIECE_MAX), ((1 << 20) - 1, 10)] {
        let part = cold.read(&file, position as u64, len, LEN as u64).await.expect("read").expect("not in memory");
        let end = (position + 1).next_multiple_of(PIECE_MAX);
        assert!(*part == bytes[position..end], "from {position} to the end of the piece");
    }
    let piece = cold.read(&file, LEN as u64 - 10, 10, LEN as u64).await.expect("read").expect("not in memory");
    assert!(*piece == bytes[LEN - 10..], "the end");
    assert!(!is_resident(&file, 1 << 20, 1), "and the page cache holds no more than before");
}

#[test]
fn a_buffer_is_filled_from_anywhere_in_a_file() {
    let (_directory, file, bytes) = written();
    let mut buffer = Buffers::default().take();
    for (position, len) in [(0, 1), (4097, 100_000), (LEN - 10, 10), (LEN - 10, 50), (LEN, 1), (LEN + 9000, 1)] {
        let filled = buffer.fill(&file, position as u64, len).expect("filled");
        let expected = bytes.get(position..).unwrap_or_default();
        assert!(buffer.bytes()[filled] == expected[..expected.len().min(len)], "{len} from {position}");
    }
}

#[test]
fn a_range_outside_the_page_cache_is_read_and_stays_outside() {
    let (_directory, file, bytes) = written();
    for is_cold in [false, true] {
        if is_cold {
            fadvise(&*file, 0, None, Advice::DontNeed).expect("advice is taken");
        }
        let were_in_memory = is_resident(&file, 0, LEN);
        for (position, len) in [(0, LEN), (5, 1), (4095, PIECE_MAX + 7), (LEN - 1, 1), (LEN, 0)] {
            let mut room = vec![0; len];
            DirectReads::default().read_exact(&file, position as u64, &mut room).expect("read");
            assert!(room == bytes[position..][..len], "{len} from {position}");
        }
        assert_eq!(is_resident(&file, 0, LEN), were_in_memory);
        let ended =
            DirectReads::default().read_exact(&file, LEN as u64 - 1, &mut [0; 2]).expect_err("the file ends there");
        assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
    }
}

#[test]
fn a_file_without_direct_reads_is_read_all_the_same() {
    let file = File::open("/proc/version").expect("Linux");
    assert!(read_around(&file, 0, &mut vec![0; 4096]).is_err(), "or nothing is shown");
    let mut buffer = Buffers::default().take();
    let filled = buffer.fill(&file, 1, 4).expect("filled");
    assert_eq!(&buffer.bytes()[filled], b"inux");
}

#[tokio::test]
async fn more_pieces_than_may_be_held_come_one_after_another() {
    let (_directory, file, bytes) = written();
    let cold = Arc::new(DirectReads::default());
    let reads = (0..3 * PIECES_MAX).map(|at| {
        let (cold, file, expected) = (Arc::clone(&cold), Arc::clone(&file), bytes[at * 1000..][..1000].to_vec());
        async move {
            fadvise(&*file, 0, None, Advice::DontNeed).expect("advice is taken");
            let piece = cold.read(&file, at as u64 * 1000, 1000, LEN as u64).await.expect("read");
            assert!(piece.is_none_or(|piece| *piece == expected));
        }
    });
    let reads: Vec<_> = reads.map(tokio::spawn).collect();
    for read in reads {
        read.await.expect("no panic");
    }
}

/// Returns a file of which nothing is in memory. Returns `None` if the files of this file system are always in memory.
fn unread() -> Option<(tempfile::TempDir, Arc<File>, Vec<u8>)> {
    let (directory, file, bytes) = written();
    fadvise(&*file, 0, None, Advice::DontNeed).expect("advice is taken");
    (!is_resident(&file, 0, LEN)).then_some((directory, file, bytes))
}

/// Reads a part of a file that does not change any more.
async fn part(cold: &DirectReads, file: &Arc<File>, position: u64, len: usize) -> PieceSlice {
    let settled = file.metadata().expect("there").len();
    cold.read(file, position, len, settled).await.expect("read").expect("not in memory")
}

#[tokio::test]
async fn a_reader_that_reads_on_finds_the_next_piece_and_others_share_it() {
    let Some((_directory, file, bytes)) = unread() else { return };
    let cold = DirectReads::default();
    part(&cold, &file, 10, 100).await;
    assert!(!cold.shelf.lock().has(&file, PIECE_MAX as u64), "a single look reads no further");
    let first = part(&cold, &file, PIECE_MAX as u64 - 5, 100).await;
    assert!(*first == bytes[PIECE_MAX - 5..PIECE_MAX]);
    let slot = cold.shelf.lock().slot_at(&file, PIECE_MAX as u64, LEN as u64).expect("room");
    // Normally the read-ahead task reads the piece. If the task has not begun yet, this call reads the piece instead.
    let ahead = slot.piece(&cold.pieces).await.expect("read");
    assert_eq!(ahead.end(), 2 * PIECE_MAX as u64, "though no reader has requested it");
    let second = part(&cold, &file, PIECE_MAX as u64, 300).await;
    assert!(Arc::ptr_eq(&second.piece, &ahead) && *second == bytes[PIECE_MAX..][..300]);
    assert!(cold.shelf.lock().has(&file, 2 * PIECE_MAX as u64), "and so on");

    let mut header = [0; 64];
    assert_eq!(cold.peek(&file, PIECE_MAX as u64 + 7, &mut header), 64);
    assert!(header == bytes[PIECE_MAX + 7..][..64]);
    assert_eq!(cold.peek(&file, 2 * PIECE_MAX as u64 - 3, &mut header), 3, "as much as there is");
    assert_eq!(cold.peek(&file, 3 * PIECE_MAX as u64, &mut header), 0);
}

#[tokio::test]
async fn unsettled_bytes_are_read_once_they_are_settled() {
    let Some((_directory, file, bytes)) = unread() else { return };
    let cold = DirectReads::default();
    let first = cold.read(&file, 0, 50, 100).await.expect("read").expect("not in memory");
    assert_eq!((first.len(), first.piece.end()), (50, 100));
    assert_eq!(cold.peek(&file, 100, &mut [0; 10]), 0);
    let second = cold.read(&file, 90, 200, 300).await.expect("read").expect("not in memory");
    assert!(*second == bytes[90..100], "to the end of what was read first");
    let third = cold.read(&file, 100, 200, 300).await.expect("read").expect("not in memory");
    assert!(*third == bytes[100..300]);
    assert!(*part(&cold, &file, 300, PIECE_MAX).await == bytes[300..PIECE_MAX]);
}

#[tokio::test]
async fn an_unused_piece_is_removed() {
    let Some((_directory, file, _)) = unread() else { return };
    let cold = DirectReads::default();
    let slot = Arc::downgrade(&cold.shelf.lock().slot_at(&file, 0, 10).expect("room"));
    assert!(slot.upgrade().is_some());
    while slot.upgrade().is_some() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
