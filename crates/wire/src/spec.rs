//! What a declaration of a message says of itself, for crates/broker/PROTOCOL.md.

use std::ops::RangeInclusive;

/// One field of a message, for crates/broker/PROTOCOL.md.
#[derive(Clone, Debug)]
pub struct FieldSpec {
    /// The field's name.
    pub name: &'static str,
    /// Its Rust type, which mirrors Kafka's.
    pub type_name: &'static str,
    /// The versions it is in; an open range ends at `i16::MAX`.
    pub versions: RangeInclusive<i16>,
    /// The versions in which it may be null, if it is an `Option`.
    pub nullable: RangeInclusive<i16>,
    /// Its default, when not its type's.
    pub default: Option<&'static str>,
    /// Its tag, if it is a tagged field.
    pub tag: Option<u32>,
    /// What it means.
    pub doc: &'static str,
}

/// One struct of a message, for crates/broker/PROTOCOL.md.
#[derive(Clone, Debug)]
pub struct StructSpec {
    /// The struct's name.
    pub name: &'static str,
    /// What it is.
    pub doc: &'static str,
    /// Its fields in wire order.
    pub fields: Vec<FieldSpec>,
}
