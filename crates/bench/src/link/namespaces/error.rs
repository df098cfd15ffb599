//! Why there is no link between two namespaces.

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Not root.
    #[error("network namespaces need root; without it use a relay: --listen HOST:PORT --to HOST:PORT")]
    NotRoot,
    /// A name that `ip netns` would not take either.
    #[error("namespace '{0}': a name has 1 to 32 letters, digits, '-' or '_'")]
    BadName(String),
    /// The same twice.
    #[error("namespace '{0}': the two ends need different names")]
    SameName(String),
    /// Somebody else's.
    #[error("namespace '{0}' exists and is not this tool's; choose another name, or remove it with `ip netns del {0}`")]
    Exists(String),
    /// Another link's.
    #[error("namespace '{0}' belongs to a link that is running; end it or choose another name")]
    InUse(String),
    /// The program `ip`.
    #[error("`{0}` failed: {1}")]
    Ip(String, String),
    /// The system.
    #[error("{0}: {1}")]
    System(String, std::io::Error),
}
