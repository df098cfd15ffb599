//! Groups the segments that a cleaning merges into one, so that a log does not end up as thousands of nearly empty
//! files (Kafka's `Cleaner.groupSegmentsBySize`).

use std::ops::Range;

/// A segment before its cleaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    pub base_offset: i64,
    /// The base offset of the next segment.
    pub end_offset: i64,
    /// The size of the log file. `index_size` is the size of the larger index file.
    pub size: u64,
    pub index_size: u64,
}

/// The limits of a segment: segment.bytes and segment.index.bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentLimits {
    pub segment_bytes: u64,
    pub index_bytes: u64,
}

/// Divides adjacent segments into groups, without a change of their order. Each group fits into one segment even if all
/// its records survive. A segment over the limits is a group of its own.
pub fn group(sources: &[Source], limits: SegmentLimits) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let (mut size, mut index_size) = (0, 0);
    for (at, source) in sources.iter().enumerate() {
        if let Some(last) = groups.last_mut() {
            let base_offset = sources[last.start].base_offset;
            let fits = size + source.size <= limits.segment_bytes
                && index_size + source.index_size <= limits.index_bytes
                && source.end_offset - 1 - base_offset <= i64::from(i32::MAX);
            if fits {
                last.end = at + 1;
                size += source.size;
                index_size += source.index_size;
                continue;
            }
        }
        groups.push(at..at + 1);
        (size, index_size) = (source.size, source.index_size);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(sizes: &[(u64, u64)], offsets: i64) -> Vec<Source> {
        let source = |(at, &(size, index_size)): (usize, &(u64, u64))| {
            let base_offset = at as i64 * offsets;
            Source { base_offset, end_offset: base_offset + offsets, size, index_size }
        };
        sizes.iter().enumerate().map(source).collect()
    }

    #[test]
    fn neighbours_are_joined_as_long_as_everything_fits() {
        let limits = SegmentLimits { segment_bytes: 100, index_bytes: 10 };
        let groups = |sizes: &[(u64, u64)]| group(&sources(sizes, 10), limits);
        assert_eq!(groups(&[]), []);
        assert_eq!(groups(&[(500, 50), (1, 1)]), [0..1, 1..2]);
        assert_eq!(groups(&[(50, 1), (50, 1), (1, 1), (0, 0)]), [0..2, 2..4]);
        assert_eq!(groups(&[(1, 6), (1, 4), (1, 1), (99, 9), (100, 1)]), [0..2, 2..4, 4..5]);
    }

    #[test]
    fn segment_holds_no_more_offsets_than_it_can_encode() {
        let limits = SegmentLimits { segment_bytes: 100, index_bytes: 100 };
        let quarter = 1 << 29;
        assert_eq!(group(&sources(&[(1, 1); 6], quarter), limits), [0..4, 4..6]);
        assert_eq!(group(&sources(&[(0, 0); 2], 1 << 31), limits), [0..1, 1..2]);
    }
}
