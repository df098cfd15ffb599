//! Where brokers are, as `host:port`.
//!
//! Invariant: an IPv6 address has brackets, in which alone a port can be told from its last group.

/// `host:port`, with the brackets that an IPv6 address needs.
pub(crate) fn join(host: &str, port: i32) -> String {
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Whether this is `host:port`.
pub(crate) fn is_address(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_hosts_get_brackets() {
        assert_eq!(join("::1", 9092), "[::1]:9092");
        assert_eq!(join("[::1]", 9092), "[::1]:9092");
        assert_eq!(join("h", 1), "h:1");
    }

    #[test]
    fn a_host_and_a_port_are_an_address() {
        assert!(["a:1", "10.0.0.1:65535", "[::1]:9092"].into_iter().all(is_address));
        assert!(!["", "a", "a:b", ":1", "a:70000", "[::1]"].into_iter().any(is_address));
    }
}
