//! DescribeClientQuotas, key 48 (DescribeClientQuotasRequest.json, DescribeClientQuotasResponse.json).
//!
//! Introduced by KIP-546. Flexible from version 1 on.

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Entities whose quotas are wanted.
    pub struct DescribeClientQuotasRequest {
        /// Conditions, all of which must hold.
        components: Vec<ComponentData>, 0..;
        /// True if entities that also have other parts are left out.
        strict: bool, 0..;
    }

    /// A condition.
    pub struct ComponentData {
        /// Part of an entity that the condition is about: `user`, `client-id` or `ip`.
        entity_type: Text, 0..;
        /// Match type: 0 the name, 1 the default, 2 any name.
        match_type: i8, 0..;
        /// The name; null if the match type needs none.
        r#match: Option<Text>, 0..;
    }

    /// The quotas.
    pub struct DescribeClientQuotasResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Error message, or null.
        error_message: Option<Text>, 0..;
        /// Each entity that has quotas, or null with an error.
        entries: Option<Vec<EntryData>>, 0..;
    }

    /// An entity.
    pub struct EntryData {
        /// Parts of the entity.
        entity: Vec<EntityData>, 0..;
        /// Quotas of the entity.
        values: Vec<ValueData>, 0..;
    }

    /// A part of an entity.
    pub struct EntityData {
        /// Part of the entity: `user`, `client-id` or `ip`.
        entity_type: Text, 0..;
        /// The name, or null for the default.
        entity_name: Option<Text>, 0..;
    }

    /// A quota.
    pub struct ValueData {
        /// Configuration key of the quota.
        key: Text, 0..;
        /// Value of the quota.
        value: f64, 0..;
    }
}
