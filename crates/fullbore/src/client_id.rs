//! Default client ids of the commands that connect to a cluster.

/// Client id of `fullbore cluster`.
pub const CLUSTER: &str = "fullbore-cluster";
/// Client id of `fullbore configs`.
pub const CONFIGS: &str = "fullbore-configs";
/// Client id of `fullbore groups`.
pub const GROUPS: &str = "fullbore-groups";
/// Client id of `fullbore topics`.
pub const TOPICS: &str = "fullbore-topics";
/// Client id of `fullbore api-versions`.
pub const API_VERSIONS: &str = "fullbore-api-versions";
/// Client id of the completion of names in shells.
pub const COMPLETIONS: &str = "fullbore-completions";
/// Client id of `fullbore info`.
pub const INFO: &str = "fullbore-info";
/// Client id of `fullbore transactions`.
pub const TRANSACTIONS: &str = "fullbore-transactions";
/// Client id of `fullbore log-dirs`.
pub const LOG_DIRS: &str = "fullbore-log-dirs";
