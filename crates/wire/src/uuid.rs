//! Kafka's UUID: 16 bytes, written as unpadded URL-safe base64.

use std::fmt;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The id of a topic or a cluster (Kafka's `org.apache.kafka.common.Uuid`). All zeros mean that there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// The value that stands for no id.
    pub const ZERO: Uuid = Uuid([0; 16]);

    /// Returns true if this is [`Uuid::ZERO`].
    pub fn is_zero(&self) -> bool {
        *self == Uuid::ZERO
    }

    /// Parses the form with 22 characters that [`fmt::Display`] writes. Returns None for any other text.
    pub fn parse(text: &str) -> Option<Uuid> {
        if text.len() != 22 {
            return None;
        }
        let mut bits: u128 = 0;
        for (i, c) in text.bytes().enumerate() {
            let value = ALPHABET.iter().position(|a| *a == c)? as u128;
            // The first 21 characters have 126 bits. The 22nd has the remaining 2 bits and 4 zeros.
            if i < 21 {
                bits = bits << 6 | value;
            } else if value & 0xf == 0 {
                bits = bits << 2 | value >> 4;
            } else {
                return None;
            }
        }
        Some(Uuid(bits.to_be_bytes()))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = u128::from_be_bytes(self.0);
        for i in 0..22 {
            let value = if i < 21 { bits >> (122 - 6 * i) } else { bits << 4 };
            write!(f, "{}", ALPHABET[(value & 63) as usize] as char)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_is_kafkas() {
        let id = Uuid::parse("4L6g3nShT-eMCtK--X86sw").expect("an id from Kafka's documentation");
        assert_eq!(id.to_string(), "4L6g3nShT-eMCtK--X86sw");
        assert_eq!(Uuid::ZERO.to_string(), "AAAAAAAAAAAAAAAAAAAAAA");
        assert_eq!(Uuid::parse("AAAAAAAAAAAAAAAAAAAAAB"), None);
        assert_eq!(Uuid::parse("short"), None);
    }
}
