//! Facts about TCP sockets that only the system knows.

use std::os::fd::{AsRawFd, BorrowedFd};

/// Size of the buffer for the system's description of a socket, in words of eight bytes.
const INFO_WORDS: usize = 32;
/// Position of `tcpi_bytes_acked` in `struct tcp_info`, in words of eight bytes.
const BYTES_ACKED: usize = 15;

/// Returns how many bytes the peer of a TCP connection has acknowledged since it was opened. Returns `None` if the
/// system does not count them.
pub fn bytes_acknowledged(socket: BorrowedFd<'_>) -> Option<u64> {
    let mut info = [0_u64; INFO_WORDS];
    let mut len = libc::socklen_t::try_from(size_of_val(&info)).ok()?;
    // SAFETY: the system writes at most `len` bytes into `info`, and the length that it wrote into `len`.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            std::ptr::from_mut(&mut len),
        )
    };
    (failed == 0 && len as usize >= (BYTES_ACKED + 1) * size_of::<u64>()).then(|| info[BYTES_ACKED])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    #[test]
    fn acknowledged_bytes_are_those_that_the_peer_has_received() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut ours = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        let (mut peer, _) = listener.accept().expect("accepted");
        let before = bytes_acknowledged(ours.as_fd()).expect("counted");
        ours.write_all(&[7; 1000]).expect("written");
        peer.read_exact(&mut [0; 1000]).expect("received");
        peer.write_all(b"acknowledges").expect("written");
        ours.read_exact(&mut [0; 12]).expect("received");
        assert_eq!(bytes_acknowledged(ours.as_fd()), Some(before + 1000));
    }
}
