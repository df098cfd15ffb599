//! The macro that declares Kafka's messages. Each field is declared in one line. The struct, its codec and its
//! documentation are generated from these lines.
//!
//! ```text
//! message! {
//!     /// What it is.
//!     pub struct Name {
//!         /// What the field means.
//!         field: Type, VERSIONS [, nullable VERSIONS] [, default EXPR] [, tag N];
//!     }
//! }
//! ```
//!
//! `VERSIONS` is a range (`3..`, `3..=12`). An `Option` can be null in all versions of its field, or only in those
//! after `nullable`. The default of an `Option` is null, unless `default` has another value. If one of the field's
//! versions does not allow null, `default` is required. In other versions than its own, a field is neither read nor
//! written, and has its default. A tagged field that has its default is not written. Every struct ends with `tagged`,
//! which has the tagged fields that this program does not know.
//!
//! Invariant: a struct that was decoded can be encoded in the same version, and then decodes to the same struct.

use std::ops::{Bound, RangeBounds, RangeInclusive};

pub(crate) fn within(versions: impl RangeBounds<i16>, version: i16) -> bool {
    versions.contains(&version)
}

/// Returns `versions` as a range with both ends.
pub(crate) fn closed(versions: impl RangeBounds<i16>) -> RangeInclusive<i16> {
    let end = |bound, open, offset| match bound {
        Bound::Included(&version) => version,
        Bound::Excluded(&version) => version + offset,
        Bound::Unbounded => open,
    };
    end(versions.start_bound(), 0, 1)..=end(versions.end_bound(), i16::MAX, -1)
}

macro_rules! message {
    ($(
        $(#[doc = $about:literal])*
        pub struct $name:ident {
            $(
                $(#[doc = $doc:literal])*
                $field:ident: $type:ty, $versions:expr
                $(, nullable $nullable:expr)? $(, default $default:expr)? $(, tag $tag:literal)? ;
            )*
        }
    )*) => {$(
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $( $(#[doc = $doc])* pub $field: $type, )*
            /// Tagged fields this program does not know.
            pub tagged: $crate::TaggedFields,
        }

        impl Default for $name {
            fn default() -> Self {
                $name {
                    $( $field: $crate::message::or_default!($($default)?), )*
                    tagged: Default::default(),
                }
            }
        }

        impl $crate::Codec for $name {
            fn size_min(v: $crate::Version) -> usize {
                let tags = usize::from(v.flexible);
                tags $(
                    + if $crate::message::is_plain!($($tag)?) && $crate::message::within($versions, v.number) {
                        <$type as $crate::Codec>::size_min(v)
                    } else {
                        0
                    }
                )*
            }

            fn encode(&self, w: &mut $crate::Writer, v: $crate::Version) -> Result<(), $crate::EncodeError> {
                $(
                    if $crate::message::is_plain!($($tag)?) && $crate::message::within($versions, v.number) {
                        $(
                            if self.$field.is_none() && !$crate::message::within($nullable, v.number) {
                                return Err($crate::EncodeError::Null(stringify!($field)));
                            }
                        )?
                        $crate::Codec::encode(&self.$field, w, v)?;
                    }
                )*
                if v.flexible {
                    let tags = $crate::codec::TagWriter::new();
                    $($(
                        let default = $name::default().$field;
                        let tags = if $crate::message::within($versions, v.number) && self.$field != default {
                            tags.put($tag, &self.$field, v)?
                        } else {
                            tags
                        };
                    )?)*
                    tags.finish(w, &self.tagged)?;
                }
                Ok(())
            }

            fn decode(r: &mut $crate::Reader, v: $crate::Version) -> Result<Self, $crate::DecodeError> {
                let mut message = $name::default();
                $(
                    if $crate::message::is_plain!($($tag)?) && $crate::message::within($versions, v.number) {
                        message.$field = $crate::Codec::decode(r, v)?;
                        $(
                            if message.$field.is_none() && !$crate::message::within($nullable, v.number) {
                                return Err($crate::DecodeError::Null(stringify!($field)));
                            }
                        )?
                    }
                )*
                if v.flexible {
                    message.tagged = r.tagged_fields(|tag, field| {
                        match tag {
                            $($(
                                $tag if $crate::message::within($versions, v.number) => {
                                    $crate::Codec::decode(field, v).map(|value| {
                                        message.$field = value;
                                        None
                                    })
                                }
                            )?)*
                            _ => Ok(Some(field.rest())),
                        }
                    })?;
                }
                Ok(message)
            }

            fn specs(specs: &mut Vec<$crate::StructSpec>) {
                // A struct may be the type of several fields, but is described only once.
                if specs.iter().any(|spec| spec.name == stringify!($name)) {
                    return;
                }
                specs.push($crate::StructSpec {
                    name: stringify!($name),
                    doc: concat!($($about, "\n"),*),
                    fields: vec![$( $crate::FieldSpec {
                        name: stringify!($field),
                        type_name: stringify!($type),
                        versions: $crate::message::closed($versions),
                        nullable: $crate::message::nullable!($versions $(, $nullable)?),
                        default: $crate::message::text!($($default)?),
                        tag: $crate::message::tag!($($tag)?),
                        doc: concat!($($doc, "\n"),*),
                    }, )*],
                });
                $( <$type as $crate::Codec>::specs(specs); )*
            }
        }

        impl $crate::NullCodec for $name {
            fn size_null(_: $crate::Version) -> usize {
                1
            }

            fn encode_nullable(
                value: Option<&Self>,
                w: &mut $crate::Writer,
                v: $crate::Version,
            ) -> Result<(), $crate::EncodeError> {
                w.put_presence(value.is_some());
                value.map_or(Ok(()), |value| $crate::Codec::encode(value, w, v))
            }

            fn decode_nullable(
                r: &mut $crate::Reader,
                v: $crate::Version,
            ) -> Result<Option<Self>, $crate::DecodeError> {
                if r.presence()? { $crate::Codec::decode(r, v).map(Some) } else { Ok(None) }
            }
        }
    )*};
}

/// Expands to `EXPR`, or to the default of the type if the declaration has no default.
macro_rules! or_default {
    () => {
        Default::default()
    };
    ($value:expr) => {
        $value
    };
}

/// Expands to true if the field has no tag.
macro_rules! is_plain {
    () => {
        true
    };
    ($tag:literal) => {
        false
    };
}

macro_rules! tag {
    () => {
        None::<u32>
    };
    ($tag:literal) => {
        Some($tag)
    };
}

/// Expands to the versions in which a field may be null. If none are declared, these are all versions of the field.
macro_rules! nullable {
    ($versions:expr) => {
        $crate::message::closed($versions)
    };
    ($versions:expr, $nullable:expr) => {
        $crate::message::closed($nullable)
    };
}

macro_rules! text {
    () => {
        None
    };
    ($value:expr) => {
        Some(stringify!($value))
    };
}

pub(crate) use {is_plain, message, nullable, or_default, tag, text};
