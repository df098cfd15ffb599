//! The macro that declares Kafka's messages. One line per field gives the struct, its codec and its documentation.
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
//! `VERSIONS` is a range (`3..`, `3..=12`). An `Option` is nullable in all its versions unless `nullable` says in
//! which. A field outside its versions is neither read nor written and has its default. Every struct ends with
//! `tagged`, the tagged fields this program does not know.

use std::ops::RangeBounds;

/// One field of a message, for docs/protocol.md.
#[derive(Clone, Debug)]
pub struct FieldSpec {
    /// The field's name.
    pub name: &'static str,
    /// Its Rust type, which mirrors Kafka's.
    pub type_name: &'static str,
    /// The versions it is in.
    pub versions: &'static str,
    /// The versions in which it may be null, when not all.
    pub nullable: Option<&'static str>,
    /// Its tag, if it is a tagged field.
    pub tag: Option<u32>,
    /// What it means.
    pub doc: &'static str,
}

/// One struct of a message, for docs/protocol.md.
#[derive(Clone, Debug)]
pub struct StructSpec {
    /// The struct's name.
    pub name: &'static str,
    /// Its fields in wire order.
    pub fields: Vec<FieldSpec>,
}

pub(crate) fn within(versions: impl RangeBounds<i16>, version: i16) -> bool {
    versions.contains(&version)
}

/// Whether a field's value is null; anything but an `Option` never is.
pub(crate) trait IsNull {
    fn is_null(&self) -> bool {
        false
    }
}
impl<T> IsNull for Option<T> {
    fn is_null(&self) -> bool {
        self.is_none()
    }
}

macro_rules! message {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident {
            $(
                $(#[doc = $doc:literal])*
                $field:ident: $type:ty, $versions:expr
                $(, nullable $nullable:expr)? $(, default $default:expr)? $(, tag $tag:literal)? ;
            )*
        }
    )*) => {$(
        $(#[$meta])*
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
            #[allow(unused_mut, unused_variables)]
            fn encode(&self, w: &mut $crate::Writer, v: $crate::Version) -> Result<(), $crate::EncodeError> {
                let mut tags = $crate::codec::TagWriter::new();
                $(
                    if $crate::message::within($versions, v.number) {
                        $(
                            use $crate::message::IsNull;
                            if self.$field.is_null() && !$crate::message::within($nullable, v.number) {
                                return Err($crate::EncodeError::Null(stringify!($field)));
                            }
                        )?
                        match $crate::message::tag!($($tag)?) {
                            None => $crate::Codec::encode(&self.$field, w, v)?,
                            Some(tag) => {
                                let default: $type = $crate::message::or_default!($($default)?);
                                if self.$field != default {
                                    tags.put(tag, &self.$field, v)?;
                                }
                            }
                        }
                    }
                )*
                if v.flexible {
                    tags.finish(w, &self.tagged);
                }
                Ok(())
            }

            #[allow(unused_mut, unused_variables)]
            fn decode(r: &mut $crate::Reader, v: $crate::Version) -> Result<Self, $crate::DecodeError> {
                let mut message = $name::default();
                $(
                    if $crate::message::within($versions, v.number) && $crate::message::tag!($($tag)?).is_none() {
                        message.$field = $crate::Codec::decode(r, v)?;
                        $(
                            use $crate::message::IsNull;
                            if message.$field.is_null() && !$crate::message::within($nullable, v.number) {
                                return Err($crate::DecodeError::Null(stringify!($field)));
                            }
                        )?
                    }
                )*
                if v.flexible {
                    message.tagged = r.tagged_fields(|tag, r| {
                        $(
                            if Some(tag) == $crate::message::tag!($($tag)?)
                                && $crate::message::within($versions, v.number)
                            {
                                message.$field = $crate::Codec::decode(r, v)?;
                                return Ok(true);
                            }
                        )*
                        Ok(false)
                    })?;
                }
                Ok(message)
            }
        }

        impl $name {
            /// The declaration, for docs/protocol.md.
            pub fn spec() -> $crate::StructSpec {
                $crate::StructSpec {
                    name: stringify!($name),
                    fields: vec![$( $crate::FieldSpec {
                        name: stringify!($field),
                        type_name: stringify!($type),
                        versions: stringify!($versions),
                        nullable: $crate::message::text!($($nullable)?),
                        tag: $crate::message::tag!($($tag)?),
                        doc: concat!($($doc, "\n"),*),
                    }, )*],
                }
            }
        }
    )*};
}

/// `EXPR`, or the type's default where the declaration gives none.
macro_rules! or_default {
    () => {
        Default::default()
    };
    ($value:expr) => {
        $value
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

macro_rules! text {
    () => {
        None
    };
    ($value:expr) => {
        Some(stringify!($value))
    };
}

pub(crate) use {message, or_default, tag, text};
