//! Links with a distance, of two kinds. A [`relay`] stands between two sockets, needs no rights and works for any
//! client, but TCP sees no distance behind it. [`namespaces`] joins two network namespaces, needs root, and the
//! kernels' own TCP sees the distance.
//!
//! [`line`] has the parts of both, without I/O or clock; [`units`] parses quantities as users write them.

pub mod line;
pub mod namespaces;
pub mod relay;
pub mod units;

use std::time::Duration;

/// Properties of a link of either kind. They apply to each direction separately.
#[derive(Debug, Clone, Default)]
pub struct Shape {
    /// Round-trip time; each direction takes half of it.
    pub rtt: Duration,
    /// Bytes a second of a direction; `None` has no limit.
    pub bandwidth: Option<u64>,
    /// Bytes that may wait for the bandwidth; `None` takes the default of [`Shape::buffer_bytes`].
    pub buffer: Option<u64>,
    /// Most additional delay, at random and without reordering.
    pub jitter: Duration,
}

/// Least buffer by default.
const BUFFER_BYTES_MIN: u64 = 64 * 1024;

impl Shape {
    /// Returns the least time that a byte needs in one direction.
    pub fn one_way(&self) -> Duration {
        self.rtt / 2
    }

    /// Returns the buffer before the bottleneck: the given one, or the bytes that fit on the link in one round trip.
    pub fn buffer_bytes(&self) -> u64 {
        let fits = self.bandwidth.unwrap_or(0) as f64 * self.rtt.as_secs_f64();
        self.buffer.unwrap_or((fits as u64).max(BUFFER_BYTES_MIN))
    }

    /// Describes the shape in words.
    pub fn described(&self) -> String {
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        let mut words = format!("{} ms there and back", ms(self.rtt));
        if !self.jitter.is_zero() {
            words += &format!(", up to {} ms more each way", ms(self.jitter));
        }
        match self.bandwidth {
            Some(rate) => {
                words + &format!(", {} mbit/s each way behind {} bytes", rate as f64 * 8.0 / 1e6, self.buffer_bytes())
            }
            None => words + ", as fast as it goes",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_is_what_fits_on_the_link_unless_set() {
        let mut shape = Shape { rtt: Duration::from_millis(100), bandwidth: Some(25_000_000), ..Shape::default() };
        assert_eq!((shape.buffer_bytes(), shape.one_way()), (2_500_000, Duration::from_millis(50)));
        assert_eq!(shape.described(), "100 ms there and back, 200 mbit/s each way behind 2500000 bytes");
        shape.buffer = Some(0);
        assert_eq!(shape.buffer_bytes(), 0);
        assert_eq!(Shape::default().buffer_bytes(), BUFFER_BYTES_MIN);
    }
}
