//! Links with a distance, of two kinds. A [`relay`] stands between two sockets, needs no rights and works for any
//! client, but TCP sees no distance behind it. [`namespaces`] joins two network namespaces, needs root, and the
//! kernels' own TCP sees the distance.
//!
//! [`line`] has what both are made of, without I/O or clock; [`units`] reads what people write.

pub mod line;
pub mod namespaces;
pub mod relay;
pub mod units;

use std::time::Duration;

/// What both kinds of link have. Each direction has all of it for itself.
#[derive(Debug, Clone, Default)]
pub struct Shape {
    /// There and back; each direction takes half of it.
    pub rtt: Duration,
    /// Bytes a second of a direction; none is as fast as it goes.
    pub bandwidth: Option<u64>,
    /// Bytes that may wait for the bandwidth; none is [`Shape::buffer_bytes`]'s choice.
    pub buffer: Option<u64>,
    /// Up to so much more, at random, without reordering.
    pub jitter: Duration,
}

/// The least buffer that is chosen when none is asked for.
const BUFFER_BYTES_MIN: u64 = 64 * 1024;

impl Shape {
    /// How long a direction takes at least.
    pub fn one_way(&self) -> Duration {
        self.rtt / 2
    }

    /// The buffer before the bottleneck: as asked, or what fits on the link in one round trip.
    pub fn buffer_bytes(&self) -> u64 {
        let fits = self.bandwidth.unwrap_or(0) as f64 * self.rtt.as_secs_f64();
        self.buffer.unwrap_or((fits as u64).max(BUFFER_BYTES_MIN))
    }

    /// In words.
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
