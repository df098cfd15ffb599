//! The default client ids of the commands that connect to a cluster.

/// The client id of `fullbore cluster`.
pub const CLUSTER: &str = "fullbore-cluster";
/// The client id of `fullbore configs`.
pub const CONFIGS: &str = "fullbore-configs";
/// The client id of `fullbore groups`.
pub const GROUPS: &str = "fullbore-groups";
/// The client id of `fullbore topics`.
pub const TOPICS: &str = "fullbore-topics";
/// The client id of `fullbore api-versions`.
pub const API_VERSIONS: &str = "fullbore-api-versions";
/// The client id of the completion of names in shells.
pub const COMPLETIONS: &str = "fullbore-completions";
/// The client id of `fullbore info`.
pub const INFO: &str = "fullbore-info";
/// The client id of `fullbore transactions`.
pub const TRANSACTIONS: &str = "fullbore-transactions";
/// The client id of `fullbore log-dirs`.
pub const LOG_DIRS: &str = "fullbore-log-dirs";
