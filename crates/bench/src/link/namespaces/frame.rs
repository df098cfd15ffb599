//! Frames of a TUN device with offloads. A frame has a header that the kernel defines, and one IP packet. The kernel's
//! TCP writes packets of up to 64 KB, and expects the device to cut them into segments (TSO).
//!
//! On one machine no packet needs to be cut. The receiving kernel accepts the large packet as if its device had joined
//! the segments (GRO). A frame is cut here only if a segment is to be lost, or if the link is so slow that it sends the
//! frame in parts. Invariant: a part is a valid frame, and all parts of a frame together have each of its bytes once.

use std::ops::Range;

/// The size of `struct virtio_net_hdr`, which has flags, type, header length, segment size, checksum start and offset.
pub const DEVICE_HEADER: usize = 10;
/// Maximum size of a frame. An IP packet has at most 65,535 bytes.
pub const FRAME_BYTES_MAX: usize = DEVICE_HEADER + 65_535;

const TYPE_AT: usize = 1;
const SEGMENT_SIZE_AT: usize = 4;
const CHECKSUM_START_AT: usize = 6;
const TYPE_NONE: u8 = 0;
const TYPE_TCP4: u8 = 1;
const TYPE_TCP6: u8 = 4;
/// A sender that uses ECN sets this flag in the header's type.
const TYPE_ECN: u8 = 0x80;

const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;
const PROTOCOL_TCP: u32 = 6;

/// The segments into which a device would cut a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segments {
    /// The number of segments.
    pub count: usize,
    ip6: bool,
    /// The position of TCP's header in the frame.
    tcp_at: usize,
    /// The position of the payload in the frame.
    payload_at: usize,
    /// How many payload bytes each segment has, except the last one.
    size: usize,
}

fn u16_native(frame: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_ne_bytes(frame.get(at..at + 2)?.try_into().ok()?)))
}

impl Segments {
    /// Returns the segments of a frame, or `None` if a device would send the packet uncut.
    pub fn of(frame: &[u8]) -> Option<Segments> {
        let ip6 = match frame.get(TYPE_AT)? & !TYPE_ECN {
            TYPE_TCP4 => false,
            TYPE_TCP6 => true,
            _ => return None,
        };
        let size = u16_native(frame, SEGMENT_SIZE_AT)?;
        let tcp_at = DEVICE_HEADER + u16_native(frame, CHECKSUM_START_AT)?;
        let tcp_len = usize::from(frame.get(tcp_at + 12)? >> 4) * 4;
        let payload_at = tcp_at + tcp_len;
        let payload = frame.len().checked_sub(payload_at)?;
        if size == 0 || payload <= size || tcp_len < 20 || tcp_at < DEVICE_HEADER + if ip6 { 40 } else { 20 } {
            return None;
        }
        Some(Segments { count: payload.div_ceil(size), ip6, tcp_at, payload_at, size })
    }

    /// Returns how many bytes the segments in `range` would have on a real network, where each is an IP packet with its
    /// own headers.
    pub fn wire_bytes(&self, frame: &[u8], range: &Range<usize>) -> usize {
        range.len() * (self.payload_at - DEVICE_HEADER) + self.payload(frame, range).len()
    }

    fn payload<'a>(&self, frame: &'a [u8], range: &Range<usize>) -> &'a [u8] {
        let end = (self.payload_at + range.end * self.size).min(frame.len());
        &frame[self.payload_at + range.start * self.size..end]
    }

    /// Returns a frame that has only the segments in `range`.
    pub fn part(&self, frame: &[u8], range: &Range<usize>) -> Vec<u8> {
        let payload = self.payload(frame, range);
        let mut part = Vec::with_capacity(self.payload_at + payload.len());
        part.extend_from_slice(&frame[..self.payload_at]);
        part.extend_from_slice(payload);
        if range.len() == 1 {
            part[TYPE_AT] = TYPE_NONE;
            part[SEGMENT_SIZE_AT..SEGMENT_SIZE_AT + 2].fill(0);
        }
        self.adjust_tcp(&mut part, range);
        if self.ip6 {
            self.adjust_ip6(&mut part)
        } else {
            self.adjust_ip4(&mut part, range.start)
        }
        part
    }

    fn adjust_tcp(&self, part: &mut [u8], range: &Range<usize>) {
        let tcp = &mut part[self.tcp_at..];
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        let moved = sequence.wrapping_add((range.start * self.size) as u32);
        tcp[4..8].copy_from_slice(&moved.to_be_bytes());
        if range.end < self.count {
            tcp[13] &= !(TCP_FIN | TCP_PSH);
        }
        if range.start > 0 {
            tcp[13] &= !TCP_CWR;
        }
    }

    fn adjust_ip4(&self, part: &mut [u8], first: usize) {
        let (len, tcp_len) = (part.len() - DEVICE_HEADER, part.len() - self.tcp_at);
        let ip = &mut part[DEVICE_HEADER..self.tcp_at];
        ip[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(first as u16);
        ip[4..6].copy_from_slice(&id.to_be_bytes());
        ip[10..12].fill(0);
        let checksum = !fold(sum(ip));
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        let pseudo = fold(sum(&ip[12..20]) + PROTOCOL_TCP + tcp_len as u32);
        part[self.tcp_at + 16..self.tcp_at + 18].copy_from_slice(&pseudo.to_be_bytes());
    }

    fn adjust_ip6(&self, part: &mut [u8]) {
        let (len, tcp_len) = (part.len() - DEVICE_HEADER - 40, part.len() - self.tcp_at);
        let ip = &mut part[DEVICE_HEADER..];
        ip[4..6].copy_from_slice(&(len as u16).to_be_bytes());
        let pseudo = fold(sum(&ip[8..40]) + PROTOCOL_TCP + tcp_len as u32);
        part[self.tcp_at + 16..self.tcp_at + 18].copy_from_slice(&pseudo.to_be_bytes());
    }
}

/// Returns ranges of successive segments that are not lost. Each range has at most `run_max` segments.
pub fn runs(count: usize, run_max: usize, mut lost: impl FnMut() -> bool) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for segment in (0..count).filter(|_| !lost()) {
        match runs.last_mut() {
            Some(run) if run.end == segment && run.len() < run_max => run.end += 1,
            _ => runs.push(segment..segment + 1),
        }
    }
    runs
}

/// Returns the checksum of RFC 1071 before its carries are folded into 16 bits.
fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low))).sum()
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OPTIONS: usize = 12;

    /// Returns a frame as the kernel writes it to the device, from 10.77.0.1 to 10.77.0.2, or between two IPv6
    /// addresses.
    fn frame(ip6: bool, payload: usize, size: u16, flags: u8) -> Vec<u8> {
        let ip_len = if ip6 { 40 } else { 20 };
        let tcp_len = 20 + OPTIONS;
        let mut frame = vec![1, if ip6 { TYPE_TCP6 } else { TYPE_TCP4 }];
        for field in [(ip_len + tcp_len) as u16, size, ip_len as u16, 16] {
            frame.extend(field.to_ne_bytes());
        }
        let mut ip = vec![0; ip_len];
        if ip6 {
            ip[0] = 0x60;
            ip[4..6].copy_from_slice(&((tcp_len + payload) as u16).to_be_bytes());
            ip[8..40].copy_from_slice(&[7; 32]);
        } else {
            ip[0] = 0x45;
            ip[2..4].copy_from_slice(&((ip_len + tcp_len + payload) as u16).to_be_bytes());
            ip[4..6].copy_from_slice(&[0xFF, 0xFF]);
            ip[12..20].copy_from_slice(&[10, 77, 0, 1, 10, 77, 0, 2]);
        }
        frame.extend(ip);
        let mut tcp = vec![0; tcp_len];
        tcp[4..8].copy_from_slice(&(u32::MAX - 100).to_be_bytes());
        tcp[12] = (tcp_len as u8 / 4) << 4;
        tcp[13] = flags;
        frame.extend(tcp);
        frame.extend((0..payload).map(|i| (i * 7 + (i >> 8)) as u8));
        frame
    }

    #[test]
    fn a_packet_that_is_one_segment_is_left_alone() {
        assert_eq!(Segments::of(&frame(false, 1_000, 1_000, 0)), None);
        let mut plain = frame(false, 3_000, 1_000, 0);
        plain[TYPE_AT] = TYPE_NONE;
        assert_eq!(Segments::of(&plain), None);
        let whole = frame(false, 3_000, 1_000, 0);
        for len in 0..DEVICE_HEADER + 20 + 20 {
            assert_eq!(Segments::of(&whole[..len]), None, "{len} bytes");
        }
    }

    #[test]
    fn the_first_and_the_last_part_carry_the_flags() {
        let all = TCP_FIN | TCP_PSH | TCP_CWR | 0x10;
        let whole = frame(false, 2_500, 1_000, all);
        let segments = Segments::of(&whole).expect("three");
        let flags = |range| segments.part(&whole, &range)[segments.tcp_at + 13];
        assert_eq!([flags(0..1), flags(1..2), flags(2..3)], [TCP_CWR | 0x10, 0x10, TCP_FIN | TCP_PSH | 0x10]);
    }

    #[test]
    fn an_ip4_part_has_its_length_id_and_checksums() {
        let whole = frame(false, 2_500, 1_000, 0x10);
        let segments = Segments::of(&whole).expect("three");
        let part = segments.part(&whole, &(2..3));
        let ip = &part[DEVICE_HEADER..segments.tcp_at];
        assert_eq!((&ip[2..4], &ip[4..6]), (&(52u16 + 500).to_be_bytes()[..], &1u16.to_be_bytes()[..]));
        assert_eq!(fold(sum(ip)), 0xFFFF, "the header's checksum holds");
        // The pseudo-header has 10.77.0.1, 10.77.0.2, TCP and 532 bytes.
        let pseudo = 0x0A4D + 1 + 0x0A4D + 2 + 6 + 532;
        assert_eq!(part[segments.tcp_at + 16..][..2], (pseudo as u16).to_be_bytes());
        assert_eq!(part[TYPE_AT], TYPE_NONE);
        assert_eq!(segments.wire_bytes(&whole, &(0..3)), 3 * 52 + 2_500);
        assert_eq!(segments.wire_bytes(&whole, &(2..3)), 552);
    }

    #[test]
    fn runs_leave_out_lost_segments() {
        assert_eq!(runs(5, 5, || false), vec![0..5; 1]);
        assert_eq!(runs(5, 2, || false), [0..2, 2..4, 4..5]);
        let mut next = [false, true, false, false, true].into_iter();
        assert_eq!(runs(5, usize::MAX, || next.next().expect("five")), [0..1, 2..4]);
        assert!(runs(3, 1, || true).is_empty());
    }

    proptest! {
        #[test]
        fn parts_carry_every_byte_once_at_its_sequence(
            ip6: bool, payload in 1usize..60_000, size in 100u16..9_000, run_max in 1usize..20,
        ) {
            let whole = frame(ip6, payload, size, 0x10);
            let Some(segments) = Segments::of(&whole) else {
                prop_assert!(payload <= usize::from(size));
                return Ok(());
            };
            let mut sent = Vec::new();
            for run in runs(segments.count, run_max, || false) {
                let part = segments.part(&whole, &run);
                let sequence = u32::from_be_bytes(part[segments.tcp_at + 4..][..4].try_into().expect("four"));
                prop_assert_eq!(sequence, (u32::MAX - 100).wrapping_add(sent.len() as u32));
                let inner = Segments::of(&part).map_or(1, |inner| inner.count);
                prop_assert_eq!(inner, run.len());
                sent.extend_from_slice(&part[segments.payload_at..]);
            }
            prop_assert_eq!(&sent, &whole[segments.payload_at..]);
        }
    }
}
