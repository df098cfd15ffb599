//! A broker in the process of the test, with a temporary directory. The tests of `bench` include this file, too.

use fullbore_broker::Broker;
use fullbore_config::{BrokerConfig, Properties};
use fullbore_tests::Proxy;

/// A broker that advertises the address of a proxy, if it has one.
pub struct TestBroker {
    pub address: String,
    broker: Option<Broker>,
    runtime: tokio::runtime::Runtime,
    _directory: tempfile::TempDir,
}

impl TestBroker {
    pub fn start(proxy: Option<&Proxy>) -> Self {
        Self::start_with(proxy, &[])
    }

    /// Starts a broker with these settings. With a proxy, the broker advertises the proxy's address.
    pub fn start_with(proxy: Option<&Proxy>, settings: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut properties = Properties::default();
        properties.set("log.dirs", directory.path().join("data").display().to_string());
        properties.set("listeners", "PLAINTEXT://127.0.0.1:0");
        properties.set("fullbore.admin.listener", "");
        properties.set("auto.create.topics.enable", "false");
        if let Some(proxy) = proxy {
            properties.set("advertised.listeners", format!("PLAINTEXT://{}", proxy.address));
        }
        settings.iter().for_each(|(key, value)| properties.set(*key, *value));
        let (config, _) = BrokerConfig::from_properties(&properties).expect("valid");
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
        let broker = runtime.block_on(Broker::start(config)).expect("started");
        let address = match proxy {
            Some(proxy) => {
                proxy.lead_to(broker.addr());
                proxy.address.to_string()
            }
            None => broker.addr().to_string(),
        };
        TestBroker { address, broker: Some(broker), runtime, _directory: directory }
    }
}

impl Drop for TestBroker {
    fn drop(&mut self) {
        if let Some(broker) = self.broker.take() {
            self.runtime.block_on(broker.shutdown());
        }
    }
}
