//! Parses and formats `host:port`, the form of addresses in settings and messages.
//!
//! Names are not resolved here. Invariant: [`split_host_port`] can parse every text that [`host_port`] returns.

use std::fmt::Display;
use std::net::Ipv6Addr;

/// Returns `host:port`, with brackets around the host if it is an IPv6 address.
pub fn host_port(host: &str, port: impl Display) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Splits `name:port`, `1.2.3.4:port` or `[::1]:port` into host and port. The host is returned without brackets, and
/// may be empty. An IPv6 address must have brackets, and may have a zone, as in `[fe80::1%eth0]:9092`. Returns None for
/// any other text.
pub fn split_host_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.bytes().all(|byte| byte.is_ascii_digit()).then(|| port.parse().ok())??;
    let of_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    match host.strip_prefix('[') {
        Some(inner) => {
            let inner = inner.strip_suffix(']')?;
            let (address, zone) = inner.split_once('%').unwrap_or((inner, "0"));
            let is_address = address.parse::<Ipv6Addr>().is_ok() && !zone.is_empty() && zone.chars().all(of_name);
            is_address.then_some((inner, port))
        }
        None => host.chars().all(of_name).then_some((host, port)),
    }
}

/// Returns true if the port in `text` is above 65535, for an error message about a text that [`split_host_port`]
/// refuses.
pub fn has_port_too_large(text: &str) -> bool {
    let port = text.rsplit_once(':').map(|(_, port)| port.trim_start_matches('0')).unwrap_or_default();
    !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_above_65535_is_found() {
        for large in ["h:65536", "[::1]:99999", ":070000", "h:99999999999999999999999"] {
            assert!(has_port_too_large(large) && split_host_port(large).is_none(), "{large}");
        }
        for other in ["h:65535", "h:0", "h:", "h", "99999", "h:-99999", "h:99999x"] {
            assert!(!has_port_too_large(other), "{other}");
        }
    }

    #[test]
    fn formatted_addresses_read_back() {
        for (host, port, shown) in [
            ("localhost", 9092, "localhost:9092"),
            ("my_host-1.example", 1, "my_host-1.example:1"),
            ("10.0.0.1", 65535, "10.0.0.1:65535"),
            ("::1", 9092, "[::1]:9092"),
            ("fe80::1%eth0", 0, "[fe80::1%eth0]:0"),
            ("::ffff:10.0.0.7", 1, "[::ffff:10.0.0.7]:1"),
            ("", 9092, ":9092"),
        ] {
            assert_eq!(host_port(host, port), shown);
            assert_eq!(split_host_port(shown), Some((host, port)));
        }
    }

    #[test]
    fn a_text_that_is_no_address_is_refused() {
        for text in [
            "",
            "h",
            "h:",
            "h:x",
            "h:65536",
            "h:+1",
            "::1",
            "::1:9092",
            "[::1]",
            "[::1]9092",
            "[h]:1",
            "[::1:1",
            "::1]:1",
            "[]:1",
            "[::1%]:1",
            "PLAINTEXT://h:1",
            "a b:1",
            "h/:1",
        ] {
            assert_eq!(split_host_port(text), None, "{text}");
        }
    }
}
