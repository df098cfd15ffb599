//! The reasons why there is no link between two namespaces.

/// The reason why there is no link.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The user is not root.
    #[error("network namespaces need root; without it use a relay: --listen HOST:PORT --to HOST:PORT")]
    NotRoot,
    /// The name is not allowed: `ip netns` would refuse it as well.
    #[error("namespace '{0}': a name has 1 to 32 letters, digits, '-' or '_'")]
    BadName(String),
    /// Both ends have the same name.
    #[error("namespace '{0}': the two ends need different names")]
    SameName(String),
    /// The namespace exists already, and another program has created it.
    #[error(
        "namespace '{0}' exists, but this tool has not created it; choose another name, or remove it with `ip netns \
         del {0}`"
    )]
    Exists(String),
    /// The namespace belongs to another link that is running.
    #[error("namespace '{0}' belongs to a link that is running; end that link, or choose another name")]
    InUse(String),
    /// The program `ip` failed.
    #[error("`{0}` failed: {1}")]
    Ip(String, String),
    /// A system call failed.
    #[error("{0}: {1}")]
    System(String, std::io::Error),
}
