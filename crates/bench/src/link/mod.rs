//! Links that simulate a distance, of two kinds. A [`relay`] connects two sockets, needs no root and works for any
//! client, but TCP itself does not notice the distance. [`namespaces`] joins two network namespaces and needs root.
//! There, the kernel's TCP runs across the distance.
//!
//! [`line`] has the code that both share, without I/O or clock. [`units`] parses quantities as users write them.

pub mod line;
pub mod namespaces;
pub mod relay;
pub mod units;

use std::time::Duration;

/// The properties of a link of either kind. They apply to each direction separately.
#[derive(Debug, Clone, Default)]
pub struct Shape {
    /// The round-trip time. Each direction delays bytes by half of it.
    pub rtt: Duration,
    /// The bytes per second of each direction, or `None` for no limit.
    pub bandwidth: Option<u64>,
    /// How many bytes may wait to be sent at the limited bandwidth. `None` uses the default of [`Shape::buffer_bytes`].
    pub buffer: Option<u64>,
    /// The maximum additional delay. The delay is random, but bytes stay in order.
    pub jitter: Duration,
}

/// Minimum size of the default buffer, in bytes.
const BUFFER_BYTES_MIN: u64 = 64 * 1024;

impl Shape {
    /// Returns the delay of one direction, without jitter and queues.
    pub fn one_way(&self) -> Duration {
        self.rtt / 2
    }

    /// Returns the size of the buffer before the bottleneck, in bytes. By default, this is what the link carries in one
    /// round trip, and at least 64 KiB.
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
