//! The operations that a client may perform on the cluster, a topic or a group, as one bit for each of Kafka's
//! AclOperation. There is no authorizer, so every client may do everything.

/// Sent if the client did not request the operations, or together with an error.
pub const NOT_SAID: i32 = i32::MIN;
/// The operations create, alter, describe, cluster_action, describe_configs, alter_configs and idempotent_write.
pub const OF_THE_CLUSTER: i32 = 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12;
/// The operations read, write, create, delete, alter, describe, describe_configs and alter_configs.
pub const OF_A_TOPIC: i32 = 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 11;
/// The operations read, delete, describe, describe_configs and alter_configs.
pub const OF_A_GROUP: i32 = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11;

/// Returns `operations` if the client requested them, and otherwise [`NOT_SAID`].
pub fn where_requested(requested: bool, operations: i32) -> i32 {
    if requested { operations } else { NOT_SAID }
}
