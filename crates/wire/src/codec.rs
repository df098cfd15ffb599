//! Encodes and decodes Kafka's primitive types. Before it reads an array, a reader allocates memory only for as many
//! elements as its remaining bytes can contain.
//!
//! `message` declares messages, whose fields have these types. Invariant: decoding a frame of n bytes takes O(n) time,
//! and its memory is limited by n and by the reader's element budget.

use crate::frame::{Records, Writer};
use crate::{DecodeError, EncodeError, StructSpec, Text, Uuid};
use bytes::{Buf, Bytes};

/// Maximum number of array elements in a request, over all its arrays. Real requests have far fewer. The limit matters
/// because tiny elements of a frame become large structs in memory.
pub const REQUEST_ELEMENTS_MAX: usize = 1 << 20;
/// Maximum number of array elements in a response, over all its arrays.
pub const RESPONSE_ELEMENTS_MAX: usize = 1 << 24;

/// The version of a message, and its form: flexible (KIP-482) or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// The API version.
    pub number: i16,
    /// True if the message has compact lengths and tagged fields.
    pub flexible: bool,
}

/// A cursor over a frame. Strings, bytes and records are returned as slices of the frame.
#[derive(Clone, Debug)]
pub struct Reader {
    bytes: Bytes,
    elements_left: usize,
    /// How many bytes of memory the arrays read so far would take; `None` if the reader does not measure.
    measured: Option<usize>,
}

impl Reader {
    /// Creates a cursor at the start of `bytes` that yields at most `elements_max` array elements, over all arrays.
    pub fn new(bytes: Bytes, elements_max: usize) -> Self {
        Reader { bytes, elements_left: elements_max, measured: None }
    }

    /// Returns a cursor at the same position, which counts the memory that arrays would take, but does not store their
    /// elements. `elements_max` limits its element budget; with `None` the budget stays the same.
    pub(crate) fn measuring(&self, elements_max: Option<usize>) -> Reader {
        let elements_left = elements_max.map_or(self.elements_left, |max| max.min(self.elements_left));
        Reader { bytes: self.bytes.clone(), elements_left, measured: Some(0) }
    }

    /// Returns how many array elements may still be read.
    pub(crate) fn elements_left(&self) -> usize {
        self.elements_left
    }

    /// Returns how many bytes of memory the arrays read so far would take, if the reader measures; 0 otherwise.
    pub(crate) fn measured(&self) -> usize {
        self.measured.unwrap_or(0)
    }

    /// Adds an array of `count` values to the measured memory, if this reader measures. Otherwise returns true: the
    /// values must be stored.
    fn keeps<T>(&mut self, count: usize) -> bool {
        match &mut self.measured {
            None => true,
            Some(bytes) => {
                *bytes = bytes.saturating_add(count.saturating_mul(size_of::<T>()));
                false
            }
        }
    }

    /// Returns how many bytes are left.
    pub fn remaining(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the next `len` bytes as a slice of the frame.
    ///
    /// # Errors
    /// Returns [`DecodeError::Truncated`] if there are fewer bytes left.
    pub fn take(&mut self, len: usize) -> Result<Bytes, DecodeError> {
        if len > self.bytes.len() {
            return Err(DecodeError::Truncated { missing: len - self.bytes.len() });
        }
        Ok(self.bytes.split_to(len))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        if self.bytes.len() < N {
            return Err(DecodeError::Truncated { missing: N - self.bytes.len() });
        }
        let mut out = [0; N];
        self.bytes.copy_to_slice(&mut out);
        Ok(out)
    }

    /// Reads an unsigned LEB128 integer of at most five bytes.
    ///
    /// # Errors
    /// Returns [`DecodeError::Varint`] if the integer is longer, and [`DecodeError::Truncated`] if the bytes end within
    /// it.
    pub fn uvarint(&mut self) -> Result<u32, DecodeError> {
        let mut value = 0u64;
        for shift in (0..35).step_by(7) {
            let [byte] = self.array::<1>()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return u32::try_from(value).map_err(|_| DecodeError::Varint);
            }
        }
        Err(DecodeError::Varint)
    }

    /// Reads a length prefix; None means null. A `short` length is written in 16 bits if the message is not flexible.
    /// In a flexible message it must not exceed `i16::MAX`.
    fn length(&mut self, v: Version, short: bool) -> Result<Option<usize>, DecodeError> {
        let length = if v.flexible {
            i64::from(self.uvarint()?) - 1
        } else if short {
            i64::from(i16::from_be_bytes(self.array()?))
        } else {
            i64::from(i32::from_be_bytes(self.array()?))
        };
        let max = if short { i64::from(i16::MAX) } else { i64::from(i32::MAX) };
        match length {
            -1 => Ok(None),
            n if (0..=max).contains(&n) => Ok(Some(n as usize)),
            n => Err(DecodeError::Length(n)),
        }
    }

    /// Reads the number of elements in an array; None means a null array. Checks the number against the remaining
    /// bytes, and subtracts it from the element budget.
    fn count(&mut self, v: Version, element_size_min: usize) -> Result<Option<usize>, DecodeError> {
        let Some(count) = self.length(v, false)? else { return Ok(None) };
        self.spend(count, element_size_min)?;
        Ok(Some(count))
    }

    /// Subtracts `count` elements from the budget. Fails if the remaining bytes cannot contain them, at `size_min`
    /// bytes each.
    fn spend(&mut self, count: usize, size_min: usize) -> Result<(), DecodeError> {
        if count > self.remaining() / size_min.max(1) || count > self.elements_left {
            return Err(DecodeError::Count(count));
        }
        self.elements_left -= count;
        Ok(())
    }

    /// Returns all bytes that are left.
    pub(crate) fn rest(&mut self) -> Bytes {
        std::mem::take(&mut self.bytes)
    }

    /// Reads the byte that shows whether a nullable struct is present.
    pub(crate) fn presence(&mut self) -> Result<bool, DecodeError> {
        match i8::from_be_bytes(self.array()?) {
            -1 => Ok(false),
            1 => Ok(true),
            n => Err(DecodeError::Length(n.into())),
        }
    }

    /// Checks that no bytes are left.
    ///
    /// # Errors
    /// Returns [`DecodeError::Trailing`] if bytes are left.
    pub fn finish(&self) -> Result<(), DecodeError> {
        match self.remaining() {
            0 => Ok(()),
            n => Err(DecodeError::Trailing(n)),
        }
    }
}

impl Writer {
    /// Writes an unsigned LEB128 integer.
    pub fn put_uvarint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.put_slice(&[value as u8 | 0x80]);
            value >>= 7;
        }
        self.put_slice(&[value as u8]);
    }

    pub(crate) fn put_presence(&mut self, present: bool) {
        self.put_slice(&(if present { 1i8 } else { -1 }).to_be_bytes());
    }

    pub(crate) fn put_length(&mut self, len: Option<usize>, v: Version, short: bool) -> Result<(), EncodeError> {
        let max = if short { i16::MAX as usize } else { i32::MAX as usize - 1 };
        if let Some(len) = len.filter(|len| *len > max) {
            return Err(EncodeError::TooLong(len));
        }
        if v.flexible {
            self.put_uvarint(len.map_or(0, |len| len as u32 + 1));
        } else if short {
            self.put_slice(&len.map_or(-1, |len| len as i16).to_be_bytes());
        } else {
            self.put_slice(&len.map_or(-1, |len| len as i32).to_be_bytes());
        }
        Ok(())
    }
}

/// A type whose values occur in Kafka's messages.
pub trait Codec: Sized {
    /// Returns the minimum size of a value in this version, in bytes. This limits how many elements an array can claim.
    fn size_min(v: Version) -> usize;

    /// Appends the value to a message.
    ///
    /// # Errors
    /// Returns [`EncodeError`] if the value cannot be written in this version.
    fn encode(&self, w: &mut Writer, v: Version) -> Result<(), EncodeError>;

    /// Reads a value.
    ///
    /// # Errors
    /// Returns [`DecodeError`] if the bytes are not a valid value.
    fn decode(r: &mut Reader, v: Version) -> Result<Self, DecodeError>;

    /// Appends the declarations of all structs in this type. Each struct comes before the structs that it contains.
    fn specs(_: &mut Vec<StructSpec>) {}
}

/// Types that can be null, in fields that allow it.
pub trait NullCodec: Codec {
    /// Returns the size of null in bytes. For most types, null is a length prefix with a special value.
    fn size_null(v: Version) -> usize {
        Self::size_min(v)
    }

    /// Appends a value or null to a message.
    ///
    /// # Errors
    /// Returns [`EncodeError`] if the value cannot be written in this version.
    fn encode_nullable(value: Option<&Self>, w: &mut Writer, v: Version) -> Result<(), EncodeError>;

    /// Reads a value; None means null.
    ///
    /// # Errors
    /// Returns [`DecodeError`] if the bytes are neither a value nor null.
    fn decode_nullable(r: &mut Reader, v: Version) -> Result<Option<Self>, DecodeError>;
}

impl<T: NullCodec> Codec for Option<T> {
    fn size_min(v: Version) -> usize {
        T::size_null(v).min(T::size_min(v))
    }

    fn encode(&self, w: &mut Writer, v: Version) -> Result<(), EncodeError> {
        T::encode_nullable(self.as_ref(), w, v)
    }

    fn decode(r: &mut Reader, v: Version) -> Result<Self, DecodeError> {
        T::decode_nullable(r, v)
    }

    fn specs(specs: &mut Vec<StructSpec>) {
        T::specs(specs);
    }
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Codec for $type {
            fn size_min(_: Version) -> usize {
                size_of::<$type>()
            }
            fn encode(&self, w: &mut Writer, _: Version) -> Result<(), EncodeError> {
                w.put_slice(&self.to_be_bytes());
                Ok(())
            }
            fn decode(r: &mut Reader, _: Version) -> Result<Self, DecodeError> {
                Ok(<$type>::from_be_bytes(r.array()?))
            }
        }
    )*};
}
numbers!(i8, i16, u16, i32, i64, f64);

impl Codec for bool {
    fn size_min(_: Version) -> usize {
        1
    }
    fn encode(&self, w: &mut Writer, _: Version) -> Result<(), EncodeError> {
        w.put_slice(&[u8::from(*self)]);
        Ok(())
    }
    fn decode(r: &mut Reader, _: Version) -> Result<Self, DecodeError> {
        Ok(r.array::<1>()? != [0])
    }
}

impl Codec for Uuid {
    fn size_min(_: Version) -> usize {
        16
    }
    fn encode(&self, w: &mut Writer, _: Version) -> Result<(), EncodeError> {
        w.put_slice(&self.0);
        Ok(())
    }
    fn decode(r: &mut Reader, _: Version) -> Result<Self, DecodeError> {
        Ok(Uuid(r.array()?))
    }
}

/// Returns the size of a length prefix for an empty value or null, in bytes.
fn length_size_min(v: Version, short: bool) -> usize {
    match (v.flexible, short) {
        (true, _) => 1,
        (false, true) => 2,
        (false, false) => 4,
    }
}

/// Implements [`Codec`] for types that are written as a length and then their bytes.
macro_rules! lengths {
    ($($type:ty, short $short:literal, put $put:expr, from $from:expr);* $(;)?) => {$(
        impl Codec for $type {
            fn size_min(v: Version) -> usize {
                length_size_min(v, $short)
            }
            fn encode(&self, w: &mut Writer, v: Version) -> Result<(), EncodeError> {
                Self::encode_nullable(Some(self), w, v)
            }
            fn decode(r: &mut Reader, v: Version) -> Result<Self, DecodeError> {
                Self::decode_nullable(r, v)?.ok_or(DecodeError::Length(-1))
            }
        }
        impl NullCodec for $type {
            fn encode_nullable(value: Option<&Self>, w: &mut Writer, v: Version) -> Result<(), EncodeError> {
                w.put_length(value.map(|value| value.len()), v, $short)?;
                value.into_iter().for_each(|value| $put(w, value));
                Ok(())
            }
            fn decode_nullable(r: &mut Reader, v: Version) -> Result<Option<Self>, DecodeError> {
                let Some(len) = r.length(v, $short)? else { return Ok(None) };
                $from(r.take(len)?).map(Some)
            }
        }
    )*};
}
lengths! {
    Text, short true, put |w: &mut Writer, text: &Text| w.put_slice(text.as_bytes()),
        from |bytes| Text::from_utf8(bytes).map_err(|_| DecodeError::Utf8);
    Bytes, short false, put |w: &mut Writer, bytes: &Bytes| w.put_slice(bytes), from Ok;
    Records, short false, put Writer::put_records, from |bytes| Ok(Records::Memory(bytes));
}

impl<T: Codec> Codec for Vec<T> {
    fn size_min(v: Version) -> usize {
        length_size_min(v, false)
    }
    fn encode(&self, w: &mut Writer, v: Version) -> Result<(), EncodeError> {
        Self::encode_nullable(Some(self), w, v)
    }
    fn decode(r: &mut Reader, v: Version) -> Result<Self, DecodeError> {
        Self::decode_nullable(r, v)?.ok_or(DecodeError::Length(-1))
    }
    fn specs(specs: &mut Vec<StructSpec>) {
        T::specs(specs);
    }
}

impl<T: Codec> NullCodec for Vec<T> {
    fn encode_nullable(value: Option<&Self>, w: &mut Writer, v: Version) -> Result<(), EncodeError> {
        w.put_length(value.map(Vec::len), v, false)?;
        value.into_iter().flatten().try_for_each(|element| element.encode(w, v))
    }
    fn decode_nullable(r: &mut Reader, v: Version) -> Result<Option<Self>, DecodeError> {
        let Some(count) = r.count(v, T::size_min(v))? else { return Ok(None) };
        if !r.keeps::<T>(count) {
            for _ in 0..count {
                T::decode(r, v)?;
            }
            return Ok(Some(Vec::new()));
        }
        let mut elements = Vec::with_capacity(count);
        for _ in 0..count {
            elements.push(T::decode(r, v)?);
        }
        Ok(Some(elements))
    }
}

/// The fields of a flexible message that this program does not know, kept as they were received (KIP-482). Every struct
/// has a field of this type. The field is usually empty, and then takes only one word of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::box_collection, reason = "a vector takes three words in each of a million structs")]
pub struct TaggedFields(Option<Box<Vec<(u32, Bytes)>>>);

impl TaggedFields {
    /// Creates the value from fields, whose tags must be in ascending order.
    pub fn new(fields: Vec<(u32, Bytes)>) -> TaggedFields {
        TaggedFields((!fields.is_empty()).then(|| Box::new(fields)))
    }

    /// Returns each tag and its bytes.
    pub fn fields(&self) -> &[(u32, Bytes)] {
        self.0.as_ref().map_or(&[], |fields| fields)
    }
}

/// Collects the known tagged fields of a struct while it is encoded.
pub(crate) struct TagWriter(Vec<(u32, Writer)>);

impl TagWriter {
    pub(crate) fn new() -> Self {
        TagWriter(Vec::new())
    }

    /// Adds a field. The caller leaves out fields that have their default.
    pub(crate) fn put(mut self, tag: u32, value: &impl Codec, v: Version) -> Result<Self, EncodeError> {
        let mut w = Writer::with_capacity(32);
        value.encode(&mut w, v)?;
        self.0.push((tag, w));
        Ok(self)
    }

    /// Writes the known and the unknown fields in ascending order of their tags.
    pub(crate) fn finish(mut self, w: &mut Writer, unknown: &TaggedFields) -> Result<(), EncodeError> {
        for (tag, bytes) in unknown.fields() {
            let mut field = Writer::with_capacity(bytes.len());
            field.put_slice(bytes);
            self.0.push((*tag, field));
        }
        self.0.sort_by_key(|(tag, _)| *tag);
        if let Some(twice) = self.0.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(EncodeError::Tag(twice[0].0));
        }
        w.put_uvarint(self.0.len() as u32);
        for (tag, field) in &self.0 {
            w.put_uvarint(*tag);
            w.put_uvarint(u32::try_from(field.len()).map_err(|_| EncodeError::TooLong(field.len()))?);
            w.put_nested(field);
        }
        Ok(())
    }
}

impl Reader {
    /// Reads the tagged fields and returns the unknown ones. For each field, the caller's `known` either reads the
    /// field, or returns its bytes if it does not know the tag.
    pub(crate) fn tagged_fields(
        &mut self,
        mut known: impl FnMut(u32, &mut Reader) -> Result<Option<Bytes>, DecodeError>,
    ) -> Result<TaggedFields, DecodeError> {
        let count = self.uvarint()? as usize;
        self.spend(count, 2)?;
        let mut unknown = Vec::new();
        let (mut previous, mut is_first) = (None, true);
        for read in 0..count {
            let tag = self.uvarint()?;
            if previous >= Some(tag) {
                return Err(DecodeError::Tag(tag));
            }
            previous = Some(tag);
            let size = self.uvarint()? as usize;
            let bytes = self.take(size)?;
            let mut field = Reader { bytes, ..*self };
            if let Some(bytes) = known(tag, &mut field)? {
                if std::mem::take(&mut is_first) {
                    field.keeps::<Vec<(u32, Bytes)>>(1);
                }
                if field.keeps::<(u32, Bytes)>(1) {
                    unknown.reserve_exact(count - read);
                    unknown.push((tag, bytes));
                }
            }
            field.finish().map_err(|_| DecodeError::Tag(tag))?;
            (self.elements_left, self.measured) = (field.elements_left, field.measured);
        }
        Ok(TaggedFields::new(unknown))
    }

    /// Reads the tagged fields of a struct whose declaration has none.
    pub(crate) fn unknown_tagged_fields(&mut self) -> Result<TaggedFields, DecodeError> {
        self.tagged_fields(|_, field| Ok(Some(field.rest())))
    }
}
