//! The contents of a message's declaration, for crates/broker/PROTOCOL.md.

use std::ops::RangeInclusive;

/// Field of a message, for crates/broker/PROTOCOL.md.
#[derive(Clone, Debug)]
pub struct FieldSpec {
    /// Name of the field.
    pub name: &'static str,
    /// Rust type of the field, which mirrors Kafka's.
    pub type_name: &'static str,
    /// Versions of the field; an open range ends at `i16::MAX`.
    pub versions: RangeInclusive<i16>,
    /// Versions in which the field may be null, if it is an `Option`.
    pub nullable: RangeInclusive<i16>,
    /// Default of the field, unless it is the type's.
    pub default: Option<&'static str>,
    /// Tag of a tagged field.
    pub tag: Option<u32>,
    /// Meaning of the field.
    pub doc: &'static str,
}

/// Struct of a message, for crates/broker/PROTOCOL.md.
#[derive(Clone, Debug)]
pub struct StructSpec {
    /// Name of the struct.
    pub name: &'static str,
    /// Meaning of the struct.
    pub doc: &'static str,
    /// Fields in wire order.
    pub fields: Vec<FieldSpec>,
}
