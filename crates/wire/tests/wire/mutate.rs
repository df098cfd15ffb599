//! Small changes to valid bytes. The decoder reads further into such bytes than into random ones before it fails.

use super::schema::Dice;

/// Changes, adds or removes one byte. Sometimes cuts the bytes, repeats a range of them, or writes a huge count
/// instead.
pub fn mutate(bytes: &mut Vec<u8>, dice: &mut Dice) {
    let at = dice.below(bytes.len() + 1);
    let Some(byte) = bytes.get_mut(at) else { return bytes.push(dice.below(256) as u8) };
    match dice.below(10) {
        0..3 => *byte ^= 1 << dice.below(8),
        3..5 => *byte = [0, 1, 2, 0x7f, 0x80, 0xff][dice.below(6)],
        5 => bytes.insert(at, dice.below(256) as u8),
        6 => drop(bytes.remove(at)),
        7 => bytes.truncate(at),
        8 => {
            let end = (at + 1 + dice.below(20)).min(bytes.len());
            let piece = bytes[at..end].to_vec();
            bytes.splice(at..at, piece);
        }
        _ => {
            let huge: &[u8] = [&[0x7f, 0xff, 0xff, 0xff][..], &[0xff, 0xff, 0xff, 0xff, 0x0f]][dice.below(2)];
            let end = (at + huge.len()).min(bytes.len());
            bytes.splice(at..end, huge.iter().copied());
        }
    }
}
