//! The hosts in a database URL, and the order in which a connection tries them.
//!
//! A connection has its own time limit at each host, so that a host that accepts connections and does not answer leaves
//! time for the others. tokio-postgres has such a limit only for the TCP connection. Invariant: every attempt includes
//! each host once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fullbore_host::random_id;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, LoadBalanceHosts};

/// The hosts of one URL. Clones share the host with which the next attempt begins.
#[derive(Clone)]
pub struct Hosts {
    count: usize,
    is_random: bool,
    first: Arc<AtomicUsize>,
}

impl Hosts {
    /// Returns the hosts of `config`. If their number differs from that of the addresses or ports, counts them as one
    /// host, so that tokio-postgres reports the mistake.
    pub fn new(config: &Config) -> Hosts {
        let (hosts, addresses) = (config.get_hosts().len(), config.get_hostaddrs().len());
        let is_valid = (addresses == 0 || addresses == hosts) && [0, 1, hosts].contains(&config.get_ports().len());
        let count = if is_valid { hosts.max(1) } else { 1 };
        let is_random = config.get_load_balance_hosts() == LoadBalanceHosts::Random;
        Hosts { count, is_random, first: Arc::default() }
    }

    /// Returns the number of hosts.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the order of the next attempt. It begins with the host that worked last, or is random if the URL
    /// requires that.
    pub fn order(&self) -> Vec<usize> {
        let first = self.first.load(Ordering::Relaxed);
        let mut order: Vec<usize> = (0..self.count).map(|at| (first + at) % self.count).collect();
        if self.is_random {
            order.sort_by_cached_key(|_| random_id().0);
        }
        order
    }

    /// Lets the next attempt begin with `host`, which works.
    pub fn begin_with(&self, host: usize) {
        self.first.store(host % self.count, Ordering::Relaxed);
    }

    /// Lets the next attempt begin with the host after `host`, whose database lacks commits.
    pub fn begin_after(&self, host: usize) {
        self.begin_with(host + 1);
    }

    /// Returns `config` with only the host at this index.
    pub fn only(&self, config: &Config, at: usize) -> Config {
        if self.count == 1 {
            return config.clone();
        }
        let mut one = without_hosts(config);
        match config.get_hosts().get(at) {
            Some(Host::Tcp(name)) => {
                one.host(name);
            }
            Some(Host::Unix(path)) => {
                one.host_path(path);
            }
            None => {}
        }
        if let Some(address) = config.get_hostaddrs().get(at) {
            one.hostaddr(*address);
        }
        if let Some(port) = config.get_ports().get(at).or(config.get_ports().first()) {
            one.port(*port);
        }
        one
    }
}

/// Copies all parameters except hosts, addresses and ports, which a [`Config`] cannot remove.
fn without_hosts(config: &Config) -> Config {
    let mut copy = Config::new();
    copy.ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .channel_binding(config.get_channel_binding())
        .target_session_attrs(config.get_target_session_attrs())
        .load_balance_hosts(config.get_load_balance_hosts())
        .keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle());
    if let Some(user) = config.get_user() {
        copy.user(user);
    }
    if let Some(password) = config.get_password() {
        copy.password(password);
    }
    if let Some(name) = config.get_dbname() {
        copy.dbname(name);
    }
    if let Some(options) = config.get_options() {
        copy.options(options);
    }
    if let Some(name) = config.get_application_name() {
        copy.application_name(name);
    }
    if let Some(max) = config.get_connect_timeout() {
        copy.connect_timeout(*max);
    }
    if let Some(max) = config.get_tcp_user_timeout() {
        copy.tcp_user_timeout(*max);
    }
    if let Some(interval) = config.get_keepalives_interval() {
        copy.keepalives_interval(interval);
    }
    if let Some(retries) = config.get_keepalives_retries() {
        copy.keepalives_retries(retries);
    }
    copy
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMETERS: &str = "application_name=a&options=-c%20x%3Dy&channel_binding=require&connect_timeout=3&\
         keepalives=0&keepalives_idle=4&keepalives_interval=5&keepalives_retries=6&load_balance_hosts=random&\
         sslmode=require&sslnegotiation=direct&target_session_attrs=read-write&tcp_user_timeout=7";

    fn config(hosts: &str, parameters: &str) -> Config {
        format!("postgres://me:word@{hosts}/them?{parameters}").parse().expect("a URL")
    }

    /// The comparison also finds a parameter that a later tokio-postgres has and that is not copied, once
    /// `PARAMETERS` has it.
    #[test]
    fn one_host_is_taken_all_other_parameters_are_kept() {
        let several = config("a:1,b:2,%2Fc:3", PARAMETERS);
        let hosts = Hosts::new(&several);
        assert_eq!(hosts.count(), 3);
        for (at, one) in ["a:1", "b:2", "%2Fc:3"].into_iter().enumerate() {
            assert_eq!(hosts.only(&several, at), config(one, PARAMETERS));
        }
        let addresses = config("a:8,b:9", "hostaddr=10.0.0.1,10.0.0.2");
        assert_eq!(Hosts::new(&addresses).only(&addresses, 1), config("b:9", "hostaddr=10.0.0.2"));
    }

    #[test]
    fn numbers_of_hosts_and_addresses_differ_the_config_is_not_divided() {
        let differing = config("a,b", "hostaddr=10.0.0.1");
        let hosts = Hosts::new(&differing);
        assert_eq!((hosts.order(), hosts.only(&differing, 0)), (vec![0], differing));
    }

    #[test]
    fn host_works_or_lacks_commits_next_attempt_begins_with_it_or_after_it() {
        let hosts = Hosts::new(&config("a,b,c", ""));
        assert_eq!(hosts.order(), [0, 1, 2]);
        hosts.begin_with(1);
        assert_eq!(hosts.clone().order(), [1, 2, 0]);
        hosts.begin_after(2);
        assert_eq!(hosts.order(), [0, 1, 2]);
    }

    #[test]
    fn load_balance_is_random_each_attempt_includes_every_host() {
        let hosts = Hosts::new(&config("a,b,c", "load_balance_hosts=random"));
        let mut firsts = std::collections::BTreeSet::new();
        while firsts.len() < 3 {
            let mut order = hosts.order();
            firsts.insert(order[0]);
            order.sort_unstable();
            assert_eq!(order, [0, 1, 2]);
        }
    }
}
