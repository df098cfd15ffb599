//! Authorized operations of a client on the cluster, a topic or a group: one bit for each of Kafka's AclOperation.
//! There is no authorizer: every client may do everything.

/// Value for operations that the client did not request, or beside an error.
pub const NOT_SAID: i32 = i32::MIN;
/// Operations create, alter, describe, cluster_action, describe_configs, alter_configs and idempotent_write.
pub const OF_THE_CLUSTER: i32 = 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12;
/// Operations read, write, create, delete, alter, describe, describe_configs and alter_configs.
pub const OF_A_TOPIC: i32 = 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 11;
/// Operations read, delete, describe, describe_configs and alter_configs.
pub const OF_A_GROUP: i32 = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11;

/// Returns `operations` if the client requested them, else [`NOT_SAID`].
pub fn where_asked(asked: bool, operations: i32) -> i32 {
    if asked { operations } else { NOT_SAID }
}
