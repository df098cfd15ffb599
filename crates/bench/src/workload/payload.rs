//! The values of a produce test. Each is a slice that is valid until the next value is requested.
//!
//! Random values consist of the letters `A` to `Z`, as in Kafka's tool. Invariant: there is no allocation per record.

use std::path::Path;

/// The number of positions in the block of random letters at which a value may start. If values are small, the block
/// then fits into a core's second-level cache. With a block of 1 MiB and 64-byte records, the sender spent a quarter of
/// its time waiting for memory.
const POSITIONS: usize = 1 << 16;
/// Maximum size of a payload file, because it is held in memory.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// The reason why there is no payload.
#[derive(Debug, thiserror::Error)]
pub enum PayloadError {
    /// The file cannot be read.
    #[error("cannot read the payload file {path}: {source}; check the path given to --payload-file")]
    File {
        /// The path as it was typed.
        path: String,
        /// The cause of the error.
        source: std::io::Error,
    },
    /// The file is empty.
    #[error("the payload file {0} is empty; put at least one payload in it")]
    Empty(String),
    /// The file is larger than the limit, because its contents are held in memory.
    #[error("the payload file {path} has {len} bytes; at most {FILE_BYTES_MAX} can be held in memory")]
    TooLarge {
        /// The path as it was typed.
        path: String,
        /// The size of the file in bytes.
        len: u64,
    },
}

/// A source of values.
pub struct Payload {
    kind: Kind,
    random: Random,
}

enum Kind {
    /// Slices of one block of letters, at random positions.
    Block { block: Box<[u8]>, size: usize },
    /// Letters that are generated for each record, as in Kafka's tool. A codec would compress slices of one block too
    /// well.
    Fresh { value: Box<[u8]> },
    /// Random parts of the file.
    Lines { text: Vec<u8>, ends: Vec<(usize, usize)> },
    /// The number of the record in decimal digits.
    Monotonic { digits: [u8; 20] },
}

impl Payload {
    /// Creates values of random letters, with `size` bytes each. The values are slices of one block of letters, which
    /// costs almost no time per record. If `compressed`, the letters are generated for each value, because a codec
    /// would compress slices of one block too well.
    pub fn random(size: usize, compressed: bool) -> Self {
        let mut random = Random(0);
        let kind = if compressed {
            Kind::Fresh { value: vec![0; size].into() }
        } else {
            let mut block = vec![0; size + POSITIONS].into_boxed_slice();
            random.fill_letters(&mut block);
            Kind::Block { block, size }
        };
        Payload { kind, random }
    }

    /// Reads a text file and splits it at each `delimiter` into values. A delimiter at the very end adds no empty
    /// value.
    ///
    /// # Errors
    /// Returns [`PayloadError`] if the file cannot be read, is empty or has more than 1 GiB.
    pub fn from_file(path: &Path, delimiter: &str) -> Result<Self, PayloadError> {
        let shown = path.display().to_string();
        let of_io = |source| PayloadError::File { path: shown.clone(), source };
        let len = std::fs::metadata(path).map_err(of_io)?.len();
        if len > FILE_BYTES_MAX {
            return Err(PayloadError::TooLarge { path: shown, len });
        }
        let text = fullbore_host::files::read(path, FILE_BYTES_MAX).map_err(of_io)?;
        let ends = parts(&text, delimiter.as_bytes());
        if ends.is_empty() {
            return Err(PayloadError::Empty(shown));
        }
        Ok(Payload { kind: Kind::Lines { text, ends }, random: Random(0) })
    }

    /// Creates the values 0, 1, 2, ... in decimal digits.
    pub fn monotonic() -> Self {
        Payload { kind: Kind::Monotonic { digits: [0; 20] }, random: Random(0) }
    }

    /// Returns the number of payloads in the file, or `None` if the payloads are not from a file.
    pub fn file_payloads(&self) -> Option<usize> {
        match &self.kind {
            Kind::Lines { ends, .. } => Some(ends.len()),
            _ => None,
        }
    }

    /// Returns the value of record `number`.
    pub fn value(&mut self, number: u64) -> &[u8] {
        match &mut self.kind {
            Kind::Block { block, size } => {
                let at = self.random.below(POSITIONS);
                &block[at..at + *size]
            }
            Kind::Fresh { value } => {
                self.random.fill_letters(value);
                value
            }
            Kind::Lines { text, ends } => {
                let (from, to) = ends[self.random.below(ends.len())];
                &text[from..to]
            }
            Kind::Monotonic { digits } => decimal(number, digits),
        }
    }
}

fn parts(text: &[u8], delimiter: &[u8]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut from = 0;
    while from < text.len() {
        let rest = &text[from..];
        let hit = rest.windows(delimiter.len().max(1)).position(|window| window == delimiter);
        let len = hit.unwrap_or(rest.len());
        found.push((from, from + len));
        from += len + delimiter.len().max(1);
    }
    found
}

fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

/// A generator of random numbers (SplitMix64). Every run uses the same numbers, as in Kafka's tool.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    fn fill_letters(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            for (letter, byte) in chunk.iter_mut().zip(self.next().to_le_bytes()) {
                *letter = b'A' + ((u16::from(byte) * 26) >> 8) as u8;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_values_are_letters_that_differ() {
        for compressed in [false, true] {
            let mut payload = Payload::random(100, compressed);
            let first = payload.value(0).to_vec();
            let second = payload.value(1).to_vec();
            assert_eq!((first.len(), second.len()), (100, 100));
            assert!(first.iter().chain(&second).all(u8::is_ascii_uppercase));
            assert_ne!(first, second);
        }
    }

    #[test]
    fn all_letters_come_up() {
        let mut payload = Payload::random(10_000, true);
        let value = payload.value(0);
        assert!((b'A'..=b'Z').all(|letter| value.contains(&letter)));
    }

    #[test]
    fn monotonic_values_are_the_record_number() {
        let mut payload = Payload::monotonic();
        assert_eq!(payload.value(0), b"0");
        assert_eq!(payload.value(1_234), b"1234");
        assert_eq!(payload.value(u64::MAX), b"18446744073709551615");
    }

    #[test]
    fn a_file_is_cut_at_the_delimiter() {
        let cut = |text: &[u8], by: &[u8]| -> Vec<Vec<u8>> {
            parts(text, by).into_iter().map(|(from, to)| text[from..to].to_vec()).collect()
        };
        assert_eq!(cut(b"a\nbb\n", b"\n"), [b"a".to_vec(), b"bb".to_vec()]);
        assert_eq!(cut(b"a--b--c", b"--"), [b"a", b"b", b"c"]);
        assert_eq!(cut(b"", b"\n"), Vec::<Vec<u8>>::new());
        assert_eq!(cut(b"\nx", b"\n"), [b"".to_vec(), b"x".to_vec()]);
    }

    #[test]
    fn a_missing_file_is_named_with_a_remedy() {
        let error = Payload::from_file(Path::new("/no/such/file"), "\n").err().expect("missing");
        assert!(error.to_string().contains("/no/such/file"), "{error}");
        assert!(error.to_string().contains("--payload-file"), "{error}");
    }
}
