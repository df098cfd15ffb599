//! Parses the addresses of `listeners`, `advertised.listeners` and `fullbore.admin.listener`, and the connection limits
//! per address.
//!
//! No socket is opened and no name is resolved here. The settings of TLS are in `ssl`. Invariant: every listener is
//! PLAINTEXT or SSL, and clients can connect to its advertised address or to its own.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::error::{ConfigError, Warning};
use fullbore_tls::{ClientAuth, Settings};
use fullbore_wire::{has_port_too_large, split_host_port};

/// Settings of the TLS handshakes of a listener.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListenerTls {
    /// Keys, certificates and protocols.
    pub settings: Settings,
    /// How a client must identify itself with a certificate.
    pub client_auth: ClientAuth,
}

impl ListenerTls {
    /// Returns true if a client without a certificate is refused.
    pub fn requires_certificates(&self) -> bool {
        self.client_auth == ClientAuth::Required
    }
}

/// An address on which the broker accepts clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// The listener's name in upper case, such as `PLAINTEXT`.
    pub name: String,
    /// The host name or address, without brackets; `0.0.0.0` if the user named none.
    pub host: String,
    /// The port. With 0, the system chooses a free one.
    pub port: u16,
    /// The host and port to which clients connect. With `None`, clients connect to `host` and the port that the socket
    /// was bound to.
    pub advertised: Option<(String, u16)>,
    /// The settings of TLS; `None` for a PLAINTEXT listener.
    pub tls: Option<ListenerTls>,
}

/// The values of the keys that together define the listeners.
pub(super) struct ListenerTexts<'a> {
    pub listeners: &'a str,
    pub advertised: Option<&'a str>,
    pub protocols: Option<&'a str>,
    pub controllers: Option<&'a str>,
}

struct Endpoint {
    name: String,
    host: String,
    port: u16,
}

const LISTENERS: &str = "listeners";
const ADVERTISED: &str = "advertised.listeners";
const PROTOCOLS: &str = "listener.security.protocol.map";

/// Parses the values of the keys that define the listeners. Skips listeners of Kafka's controllers. Refuses any other
/// listener whose protocol is neither PLAINTEXT nor SSL. `tls_of` returns the TLS settings of the listener with the
/// given name.
pub(super) fn parse_listeners(
    texts: &ListenerTexts<'_>,
    tls_of: impl Fn(&str) -> Result<ListenerTls, ConfigError>,
) -> Result<(Vec<Listener>, Vec<Warning>), ConfigError> {
    let refuse = |message: &str| ConfigError::of_value(LISTENERS, texts.listeners, message);
    let protocols = protocol_map(texts.protocols)?;
    let controllers: Vec<String> = items(texts.controllers.unwrap_or("")).map(str::to_ascii_uppercase).collect();
    let (skipped, endpoints): (Vec<_>, Vec<_>) =
        endpoints(LISTENERS, texts.listeners)?.into_iter().partition(|e| controllers.contains(&e.name));
    if endpoints.is_empty() {
        return Err(refuse("must name at least one listener for clients, e.g. PLAINTEXT://127.0.0.1:9092"));
    }
    let mut advertised = advertised_by_name(texts.advertised, &controllers)?;
    let mut listeners = Vec::with_capacity(endpoints.len());
    for endpoint in endpoints {
        let is_tls = is_tls(&endpoint, &protocols, texts.listeners)?;
        let tls = if is_tls { Some(tls_of(&endpoint.name)?) } else { None };
        listeners.push(Listener { tls, ..listener(endpoint, &mut advertised)? });
    }
    if let Some(name) = advertised.keys().next() {
        return Err(ConfigError::of_key(ADVERTISED, format!("{name} is not a listener in listeners")));
    }
    let warning = |e: Endpoint| Warning {
        key: LISTENERS.into(),
        message: format!("{} is not opened: there is no controller here", e.name),
    };
    Ok((listeners, skipped.into_iter().map(warning).collect()))
}

fn listener(endpoint: Endpoint, advertised: &mut BTreeMap<String, (String, u16)>) -> Result<Listener, ConfigError> {
    let Endpoint { name, host, port } = endpoint;
    let advertised = advertised.remove(&name);
    if is_everywhere(&host) && advertised.is_none() {
        let message = format!(
            "must name an address at which clients reach {name}, e.g. {name}://myhost:{port}, since this listener \
             binds every interface"
        );
        return Err(ConfigError::of_key(ADVERTISED, message));
    }
    let host = if host.is_empty() { "0.0.0.0".to_owned() } else { host };
    Ok(Listener { name, host, port, advertised, tls: None })
}

/// Returns true if `host` means "every interface". No client can connect to such an address.
fn is_everywhere(host: &str) -> bool {
    host.is_empty() || host.parse().is_ok_and(|address: IpAddr| address.is_unspecified())
}

/// Returns true if the listener's protocol is SSL, false if it is PLAINTEXT.
fn is_tls(endpoint: &Endpoint, protocols: &BTreeMap<String, String>, typed: &str) -> Result<bool, ConfigError> {
    let name = &endpoint.name;
    match protocols.get(name).unwrap_or(name).as_str() {
        "PLAINTEXT" => Ok(false),
        "SSL" => Ok(true),
        "SASL_PLAINTEXT" | "SASL_SSL" => Err(ConfigError::of_value(
            LISTENERS,
            typed,
            format!("{name} must be PLAINTEXT or SSL: SASL is not offered yet"),
        )),
        _ => Err(ConfigError::of_value(
            LISTENERS,
            typed,
            format!("{name} needs a protocol: {PROTOCOLS}={name}:PLAINTEXT"),
        )),
    }
}

fn advertised_by_name(
    typed: Option<&str>,
    controllers: &[String],
) -> Result<BTreeMap<String, (String, u16)>, ConfigError> {
    let Some(typed) = typed.filter(|text| !text.trim().is_empty()) else {
        return Ok(BTreeMap::new());
    };
    let mut by_name = BTreeMap::new();
    for endpoint in endpoints(ADVERTISED, typed)?.into_iter().filter(|e| !controllers.contains(&e.name)) {
        if endpoint.port == 0 || is_everywhere(&endpoint.host) {
            return Err(ConfigError::of_value(
                ADVERTISED,
                typed,
                "must name a host and a port that clients can connect to",
            ));
        }
        by_name.insert(endpoint.name, (endpoint.host, endpoint.port));
    }
    Ok(by_name)
}

fn protocol_map(typed: Option<&str>) -> Result<BTreeMap<String, String>, ConfigError> {
    let typed = typed.unwrap_or("");
    let pair = |item: &str| {
        let (name, protocol) = item.split_once(':')?;
        Some((name.trim().to_ascii_uppercase(), protocol.trim().to_ascii_uppercase()))
    };
    items(typed)
        .map(|item| {
            pair(item)
                .ok_or_else(|| ConfigError::of_value(PROTOCOLS, typed, "must be NAME:PROTOCOL, several with commas"))
        })
        .collect()
}

fn endpoints(key: &str, typed: &str) -> Result<Vec<Endpoint>, ConfigError> {
    let mut found: Vec<Endpoint> = Vec::new();
    for item in items(typed) {
        let endpoint = endpoint(item).ok_or_else(|| {
            let message = match has_port_too_large(item) {
                true => "must be NAME://host:port with ports of at most 65535",
                false => "must be NAME://host:port (NAME://[::1]:port), several with commas",
            };
            ConfigError::of_value(key, typed, message)
        })?;
        if found.iter().any(|other| other.name == endpoint.name) {
            return Err(ConfigError::of_value(key, typed, format!("{} is named twice", endpoint.name)));
        }
        found.push(endpoint);
    }
    Ok(found)
}

fn endpoint(item: &str) -> Option<Endpoint> {
    let (name, address) = item.split_once("://")?;
    let (host, port) = split_host_port(address)?;
    let named = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    named.then(|| Endpoint { name: name.to_ascii_uppercase(), host: host.to_owned(), port })
}

/// Parses the `host:port` of the admin page. Returns None if the text is empty.
pub(super) fn parse_admin(key: &str, typed: &str) -> Result<Option<(String, u16)>, ConfigError> {
    if typed.is_empty() {
        return Ok(None);
    }
    match split_host_port(typed) {
        Some((host, port)) if !host.is_empty() => Ok(Some((host.to_owned(), port))),
        _ if has_port_too_large(typed) => {
            Err(ConfigError::of_value(key, typed, "must be host:port with a port of at most 65535"))
        }
        _ => Err(ConfigError::of_value(key, typed, "must be host:port ([::1]:port), or empty for none")),
    }
}

/// Parses a list of the form `address:count,...`.
pub(super) fn parse_per_ip(key: &str, typed: &str) -> Result<BTreeMap<IpAddr, usize>, ConfigError> {
    let limit = |item: &str| {
        let (address, count) = item.rsplit_once(':')?;
        let address = address.trim().trim_start_matches('[').trim_end_matches(']');
        let count: u32 = count.trim().parse().ok()?;
        // Convert the address to its canonical form, because the broker looks up the limit by a client's canonical
        // address.
        let address: IpAddr = address.parse().ok()?;
        Some((address.to_canonical(), usize::try_from(count).ok()?))
    };
    items(typed)
        .map(|item| {
            limit(item).ok_or_else(|| {
                ConfigError::of_value(key, typed, "must be address:count, several with commas; addresses, not names")
            })
        })
        .collect()
}

fn items(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(listeners: &str, advertised: Option<&str>) -> Result<Vec<Listener>, String> {
        let texts = ListenerTexts {
            listeners,
            advertised,
            protocols: Some("OUT:PLAINTEXT,IN:PLAINTEXT,TLS:SSL"),
            controllers: Some("CONTROLLER"),
        };
        let tls = |_: &str| Ok(ListenerTls::default());
        parse_listeners(&texts, tls).map(|(listeners, _)| listeners).map_err(|error| error.to_string())
    }

    #[test]
    fn one_listener_with_and_without_an_advertised_address() {
        let listener = parse("PLAINTEXT://127.0.0.1:0", None).expect("valid").remove(0);
        assert_eq!((listener.host.as_str(), listener.port, listener.advertised), ("127.0.0.1", 0, None));
        let listener = parse("plaintext://:9092", Some("PLAINTEXT://kafka.example:19092")).expect("valid").remove(0);
        assert_eq!((listener.host.as_str(), listener.port), ("0.0.0.0", 9092));
        assert_eq!(listener.advertised, Some(("kafka.example".to_owned(), 19092)));
        assert_eq!(parse("PLAINTEXT://[::1]:9092", None).expect("valid")[0].host, "::1");
    }

    #[test]
    fn port_above_65535_is_named() {
        let refused = parse("PLAINTEXT://h:99999", None).expect_err("no port");
        assert_eq!(refused, "listeners=PLAINTEXT://h:99999: must be NAME://host:port with ports of at most 65535");
        let refused = parse_admin("fullbore.admin.listener", "h:65536").expect_err("no port").to_string();
        assert_eq!(refused, "fullbore.admin.listener=h:65536: must be host:port with a port of at most 65535");
    }

    #[test]
    fn every_spelling_of_every_interface_needs_an_advertised_address() {
        for listener in ["PLAINTEXT://[::]:9092", "PLAINTEXT://[0:0::0]:9092", "PLAINTEXT://0.0.0.0:9092"] {
            assert!(parse(listener, None).expect_err(listener).contains("since this listener binds every interface"));
            assert!(parse("PLAINTEXT://[::1]:9092", Some(listener)).is_err(), "{listener}");
            let advertised =
                parse(listener, Some("PLAINTEXT://[2001:db8::1]:9092")).expect("valid").remove(0).advertised;
            assert_eq!(advertised, Some(("2001:db8::1".to_owned(), 9092)));
        }
        let admin = parse_admin("fullbore.admin.listener", "[::1]:9644").expect("valid");
        assert_eq!(admin, Some(("::1".to_owned(), 9644)));
        assert!(parse("PLAINTEXT://::1:9092", None).expect_err("no brackets").contains("[::1]:port"));
    }

    #[test]
    fn a_stock_kraft_file_opens_the_clients_listeners_only() {
        let texts = ListenerTexts {
            listeners: "PLAINTEXT://:9092,CONTROLLER://:9093",
            advertised: Some("PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093"),
            protocols: Some(
                "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
            ),
            controllers: Some("CONTROLLER"),
        };
        let (listeners, warnings) = parse_listeners(&texts, |_| Ok(ListenerTls::default())).expect("valid");
        assert_eq!(listeners.len(), 1);
        assert_eq!(warnings.len(), 1);
    }

    #[test]
    fn several_listeners_have_their_own_advertised_addresses() {
        let listeners = parse("IN://10.0.0.1:1,OUT://0.0.0.0:2", Some("OUT://e.example:3")).expect("valid");
        assert_eq!(listeners[0].advertised, None);
        assert_eq!(listeners[1].advertised, Some(("e.example".to_owned(), 3)));
    }

    #[test]
    fn the_protocol_is_the_listeners_name_or_its_entry_in_the_map() {
        let listeners = parse("IN://h:1,SSL://h:2,tls://h:3", None).expect("valid");
        let tls: Vec<_> = listeners.iter().map(|listener| listener.tls.is_some()).collect();
        assert_eq!(tls, [false, true, true]);
    }

    #[test]
    fn refusals() {
        for (listeners, advertised, expected) in [
            ("SASL_SSL://h:1", None, "SASL is not offered yet"),
            ("SASL_PLAINTEXT://h:1", None, "SASL is not offered yet"),
            ("FOO://h:1", None, "FOO needs a protocol"),
            ("h:1", None, "must be NAME://host:port"),
            ("PLAINTEXT://h:99999", None, "must be NAME://host:port"),
            ("PLAINTEXT://::1:9092", None, "must be NAME://host:port"),
            ("PLAINTEXT://[x]:9092", None, "must be NAME://host:port"),
            ("PLAINTEXT://h:1,PLAINTEXT://h:2", None, "is named twice"),
            ("", None, "at least one listener"),
            ("CONTROLLER://h:1", None, "at least one listener"),
            ("PLAINTEXT://0.0.0.0:1", None, "advertised.listeners: must name an address"),
            ("PLAINTEXT://h:1", Some("PLAINTEXT://0.0.0.0:1"), "can connect to"),
            ("PLAINTEXT://h:1", Some("OUT://h:1"), "OUT is not a listener in listeners"),
        ] {
            let error = parse(listeners, advertised).expect_err(listeners);
            assert!(error.contains(expected), "{listeners}: {error}");
        }
    }

    #[test]
    fn admin_and_per_ip() {
        assert_eq!(parse_admin("a", ""), Ok(None));
        assert_eq!(parse_admin("a", "127.0.0.1:9644"), Ok(Some(("127.0.0.1".to_owned(), 9644))));
        assert!(parse_admin("a", "9644").is_err() && parse_admin("a", ":9644").is_err());
        let limits = parse_per_ip("p", "127.0.0.1:5, [::1]:6").expect("valid");
        assert_eq!(limits.values().copied().collect::<Vec<_>>(), [5, 6]);
        assert!(parse_per_ip("p", "localhost:5").is_err() && parse_per_ip("p", "1.2.3.4").is_err());
    }
}
