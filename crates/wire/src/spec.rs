//! The contents of a declaration of messages, from which crates/broker/PROTOCOL.md is generated.

use std::ops::RangeInclusive;

/// A field of a message, as crates/broker/PROTOCOL.md describes it.
#[derive(Clone, Debug)]
pub struct FieldSpec {
    /// The name of the field.
    pub name: &'static str,
    /// The Rust type of the field, which mirrors Kafka's.
    pub type_name: &'static str,
    /// The versions that have the field. If the range is open, it ends at `i16::MAX`.
    pub versions: RangeInclusive<i16>,
    /// The versions in which the field may be null, if it is an `Option`.
    pub nullable: RangeInclusive<i16>,
    /// The declared default of the field; `None` if it has the default of its type.
    pub default: Option<&'static str>,
    /// The tag, if this is a tagged field.
    pub tag: Option<u32>,
    /// The meaning of the field.
    pub doc: &'static str,
}

/// A struct of a message, as crates/broker/PROTOCOL.md describes it.
#[derive(Clone, Debug)]
pub struct StructSpec {
    /// The name of the struct.
    pub name: &'static str,
    /// The meaning of the struct.
    pub doc: &'static str,
    /// The fields, in the order of the wire.
    pub fields: Vec<FieldSpec>,
}
