//! Base64 with padding (RFC 4648, section 4), for bytes in JSON that are not text.
//!
//! Invariant: `decode` accepts only texts that `encode` can return. It refuses white space, missing padding, and unused
//! bits that are not zero.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends `bytes` in base64.
pub fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let digit = ALPHABET[(word >> (18 - 6 * at) & 63) as usize];
            out.push(if at <= chunk.len() { digit } else { b'=' });
        }
    }
}

/// Decodes the text, or returns `None` if it is not base64.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let (chunks, rest) = text.as_bytes().as_chunks::<4>();
    if !rest.is_empty() {
        return None;
    }
    let mut out = Vec::with_capacity(chunks.len() * 3);
    for (at, chunk) in chunks.iter().enumerate() {
        let padding = match chunk {
            [_, _, b'=', b'='] if at + 1 == chunks.len() => 2,
            [_, _, _, b'='] if at + 1 == chunks.len() => 1,
            _ => 0,
        };
        let digits = &chunk[..4 - padding];
        let word = digits.iter().try_fold(0u32, |word, digit| Some(word << 6 | value(*digit)?))?;
        let word = word << (6 * padding);
        let bytes = word.to_be_bytes();
        let (kept, stray) = bytes[1..].split_at(3 - padding);
        if stray.iter().any(|byte| *byte != 0) {
            return None;
        }
        out.extend_from_slice(kept);
    }
    Some(out)
}

fn value(digit: u8) -> Option<u32> {
    let at = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(bytes: &[u8]) -> String {
        let mut out = Vec::new();
        encode(bytes, &mut out);
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn the_examples_of_the_rfc_encode_and_decode() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encoded(bytes.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()));
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encoded(&all)), Some(all));
    }

    #[test]
    fn text_that_is_not_base64_is_refused() {
        for wrong in ["Zg", "Zg=", "Zg==Zg==", "Z===", "Zh==", "Zm9=", "Zm 9", "Zm9v\n", "====", "Zg=a", "Zm9-"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
