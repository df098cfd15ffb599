//! Makes random valid messages as bytes, using only the declarations. This is a second encoder, which was written from
//! KIP-482 and the protocol guide, and does not use the encoder of the crate.
//!
//! Invariant: the bytes are canonical, so decoding and encoding them must give the same bytes.

use fullbore_wire::api::ApiKey;
use fullbore_wire::{Codec, FieldSpec, StructSpec, Version};

/// The first tag that no declaration has, below Fullbore's own tags.
const UNKNOWN_TAG: u8 = 100;
/// The first tag that no declaration has, above Fullbore's own tags.
const BEYOND_OWN_TAGS: u32 = 2000;

/// The side of an API that a message belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Request,
    Response,
}

/// Returns every message as its API, side and version.
pub fn every_message() -> impl Iterator<Item = (ApiKey, Side, Version)> {
    ApiKey::ALL.iter().flat_map(|key| {
        key.versions().flat_map(move |number| {
            let version = key.version(number).expect("the number is from the range");
            [Side::Request, Side::Response].map(|side| (*key, side, version))
        })
    })
}

/// Makes random decisions. The same seed makes the same message (SplitMix64).
pub struct Dice(pub u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// The structs of a message in one version.
pub struct Schema {
    structs: Vec<StructSpec>,
    version: Version,
}

impl Schema {
    pub fn new(key: ApiKey, side: Side, version: Version) -> Self {
        let spec = key.spec();
        Schema { structs: if side == Side::Request { spec.request } else { spec.response }, version }
    }

    /// Returns the schema of a message that does not belong to an API.
    pub fn of<T: Codec>(version: Version) -> Self {
        let mut structs = Vec::new();
        T::specs(&mut structs);
        Schema { structs, version }
    }

    /// Returns a random message.
    pub fn message(&self, dice: &mut Dice) -> Vec<u8> {
        let mut message = Message { schema: self, dice, out: Vec::new(), tagged: false };
        message.structure(&self.structs[0]);
        message.out
    }

    /// Returns a message that ends inside an array, followed by `filler` bytes. The array claims as many elements as
    /// fit into `filler` bytes, and so do the arrays around it. The dice choose the arrays. The innermost struct claims
    /// too many tagged fields as well, if it is flexible.
    pub fn claims(&self, filler: usize, dice: &mut Dice) -> Vec<u8> {
        let mut message = Message { schema: self, dice, out: Vec::new(), tagged: false };
        message.claim(&self.structs[0], filler);
        message.out.resize(message.out.len() + filler, 1);
        message.out
    }

    /// Returns the minimum size of a value in bytes.
    fn size_min(&self, type_name: &str) -> usize {
        let length = |plain| if self.version.flexible { 1 } else { plain };
        match type_name {
            "bool" | "i8" => 1,
            "i16" | "u16" | "ErrorCode" => 2,
            "i32" => 4,
            "i64" | "f64" => 8,
            "Uuid" => 16,
            "Text" => length(2),
            "Records" | "Bytes" => length(4),
            name if inside(name, "Vec").is_some() => length(4),
            name => match inside(name, "Option") {
                Some(inner) if self.is_struct(inner) => 1,
                Some(inner) => self.size_min(inner),
                None => {
                    let fields = self.plain(self.find(name));
                    fields.map(|field| self.size_min(field.type_name)).sum::<usize>() + length(0)
                }
            },
        }
    }

    fn is_struct(&self, type_name: &str) -> bool {
        self.structs.iter().any(|spec| spec.name == type_name)
    }

    fn plain<'a>(&self, spec: &'a StructSpec) -> impl Iterator<Item = &'a FieldSpec> + use<'a> {
        let number = self.version.number;
        spec.fields.iter().filter(move |field| field.tag.is_none() && field.versions.contains(&number))
    }

    fn find(&self, name: &str) -> &StructSpec {
        self.structs.iter().find(|spec| spec.name == name).expect("every type is primitive or declared")
    }
}

struct Message<'a> {
    schema: &'a Schema,
    dice: &'a mut Dice,
    out: Vec<u8>,
    /// True inside a known tagged field, which is left out if it has its default.
    tagged: bool,
}

impl Message<'_> {
    fn structure(&mut self, spec: &StructSpec) {
        let number = self.schema.version.number;
        let (plain, tagged): (Vec<_>, Vec<_>) =
            spec.fields.iter().filter(|field| field.versions.contains(&number)).partition(|field| field.tag.is_none());
        plain.into_iter().for_each(|field| self.field(field));
        if self.schema.version.flexible {
            self.tags(&tagged);
        }
    }

    /// Writes the smallest possible struct up to an array with a false claim, and the first element of that array. If
    /// the dice choose no array, writes the whole struct. A flexible struct then claims too many tagged fields. Returns
    /// true if a claim was written.
    fn claim(&mut self, spec: &StructSpec, filler: usize) -> bool {
        for field in self.schema.plain(spec) {
            let option = inside(field.type_name, "Option");
            let type_name = option.unwrap_or(field.type_name);
            if let Some(element) = inside(type_name, "Vec").filter(|_| !self.dice.one_in(3)) {
                self.length(Some(filler / self.schema.size_min(element)), false);
                if self.is_struct(element) {
                    self.claim(self.schema.find(element), filler);
                }
                return true;
            }
            if self.is_struct(type_name) {
                if option.is_some() {
                    self.out.push(1);
                }
                if self.claim(self.schema.find(type_name), filler) {
                    return true;
                }
            } else if matches!(type_name, "Text" | "Bytes" | "Records") || type_name.starts_with("Vec") {
                self.length(Some(0), type_name == "Text");
            } else {
                self.out.resize(self.out.len() + self.schema.size_min(type_name), 0);
            }
        }
        if self.schema.version.flexible {
            uvarint(&mut self.out, filler / 2);
            self.out.extend([UNKNOWN_TAG, 0]);
        }
        self.schema.version.flexible
    }

    fn field(&mut self, field: &FieldSpec) {
        let number = self.schema.version.number;
        match inside(field.type_name, "Option") {
            None => self.value(field.type_name),
            Some(inner) if self.tagged || !field.nullable.contains(&number) || !self.dice.one_in(4) => {
                if self.is_struct(inner) {
                    self.out.push(1);
                }
                self.value(inner);
            }
            Some(inner) if self.is_struct(inner) => self.out.push(0xff),
            Some(inner) => self.length(None, inner == "Text"),
        }
    }

    fn is_struct(&self, type_name: &str) -> bool {
        self.schema.is_struct(type_name)
    }

    fn value(&mut self, type_name: &str) {
        if let Some(element) = inside(type_name, "Vec") {
            return self.array(element);
        }
        if let Some(there) = inside(type_name, "TaggedOption") {
            self.out.push(1);
            return self.value(there);
        }
        match type_name {
            "bool" => {
                let value = self.tagged || self.dice.one_in(2);
                self.out.push(value.into());
            }
            "i8" => self.number(1),
            "i16" | "u16" | "ErrorCode" => self.number(2),
            "i32" => self.number(4),
            "i64" | "f64" => self.number(8),
            "Uuid" => self.number(16),
            "Text" => self.characters(true),
            "Records" | "Bytes" => self.characters(false),
            name => self.structure(self.schema.find(name)),
        }
    }

    /// Writes 0, 1, -1, the largest, the smallest or a random number. In a tagged field, leaves out the numbers that
    /// are defaults in declarations.
    fn number(&mut self, bytes: usize) {
        let random = u128::from(self.dice.next()) << 64 | u128::from(self.dice.next());
        let value = match self.dice.below(6) {
            _ if self.tagged => random >> 2 | 1 << 125,
            0 => 0,
            1 => 1,
            2 => u128::MAX,
            3 => u128::MAX >> 1,
            4 => 1 << 127,
            _ => random,
        };
        let big_endian = value.to_be_bytes();
        match value {
            1 => self.out.extend(&big_endian[16 - bytes..]),
            _ => self.out.extend(&big_endian[..bytes]),
        }
    }

    /// Writes a text that is empty, ordinary, long, or has wide characters. No text has a colon, because the test of
    /// field names searches for colons.
    fn characters(&mut self, short: bool) {
        let repeat = |text: &str, n| text.repeat(n).into_bytes();
        let bytes = match self.dice.below(if self.tagged { 3 } else { 5 }) {
            0 => repeat("topic-7.a_b", 1),
            1 => repeat("é√🦀\u{0}", 1 + self.dice.below(9)),
            2 => repeat("a", 1 + self.dice.below(130)),
            3 if self.dice.one_in(20) => repeat("wide", 1_000),
            _ => Vec::new(),
        };
        self.length(Some(bytes.len()), short);
        self.out.extend(bytes);
    }

    fn array(&mut self, element: &str) {
        let count = match self.dice.below(10) {
            _ if self.tagged => 1 + self.dice.below(3),
            0..3 => 0,
            3..6 => 1,
            9 if !self.is_struct(element) && self.dice.one_in(3) => 200,
            _ => 1 + self.dice.below(4),
        };
        self.length(Some(count), false);
        (0..count).for_each(|_| self.value(element));
    }

    fn tags(&mut self, known: &[&FieldSpec]) {
        let mut fields = Vec::new();
        for field in known {
            if self.dice.one_in(2) {
                let mut inner = Message { schema: self.schema, dice: self.dice, out: Vec::new(), tagged: true };
                inner.field(field);
                fields.push((field.tag.expect("only tagged fields come here"), inner.out));
            }
        }
        fields.sort_by_key(|(tag, _)| *tag);
        if self.dice.one_in(6) {
            // Tags must ascend, so these unknown tags are above Fullbore's own tags, which may come before them.
            let tag = BEYOND_OWN_TAGS + self.dice.below(1 << 20) as u32;
            fields.push((tag, b"unknown".repeat(self.dice.below(30))));
            fields.push((tag + 1, Vec::new()));
        }
        uvarint(&mut self.out, fields.len());
        for (tag, bytes) in fields {
            uvarint(&mut self.out, tag as usize);
            uvarint(&mut self.out, bytes.len());
            self.out.extend(bytes);
        }
    }

    fn length(&mut self, length: Option<usize>, short: bool) {
        match (self.schema.version.flexible, short) {
            (true, _) => uvarint(&mut self.out, length.map_or(0, |length| length + 1)),
            (false, true) => self.out.extend(length.map_or(-1, |length| length as i16).to_be_bytes()),
            (false, false) => self.out.extend(length.map_or(-1, |length| length as i32).to_be_bytes()),
        }
    }
}

fn uvarint(out: &mut Vec<u8>, value: usize) {
    let (low, high) = (value as u8 & 0x7f, value >> 7);
    if high == 0 {
        out.push(low);
    } else {
        out.push(low | 0x80);
        uvarint(out, high);
    }
}

/// Returns the `T` in `outer<T>`; None for any other type.
fn inside<'a>(type_name: &'a str, outer: &str) -> Option<&'a str> {
    type_name.strip_prefix(outer)?.strip_prefix('<')?.strip_suffix('>')
}
