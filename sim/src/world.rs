//! The cluster and its clients. Events are delivered here.

mod chaos;

use std::collections::BTreeMap;

use crate::broker::Broker;
use crate::check::Replica;
use crate::client::Client;
use crate::context::{Context, Event, Held};
use crate::database::Database;
use crate::network::{Network, Node};
use crate::settings::Settings;
use fullbore_schedules::Random;

#[derive(Debug)]
pub struct World {
    pub context: Context,
    pub brokers: BTreeMap<i32, Broker>,
    pub clients: Vec<Client>,
}

impl World {
    pub fn new(settings: Settings, random: Random, database: Database, network: Network) -> World {
        let context = Context::new(settings, random, database, network);
        World { context, brokers: BTreeMap::new(), clients: Vec::new() }
    }

    /// Runs until the time `end`, or until a check fails.
    pub fn run_until(&mut self, end: i64) -> Result<(), String> {
        while let Some(event) = self.context.timeline.next_before(end) {
            self.happen(event)?;
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        let context = &mut self.context;
        if let Event::Closed { connection, .. } = event {
            context.network.break_off(connection);
        }
        let whom = match event {
            Event::Chaos(what) => {
                self.apply_chaos(what);
                return self.check_all();
            }
            Event::Deliver { to, connection, .. } if !context.network.is_open(connection, to) => return Ok(()),
            Event::Deliver { to: Node::Database, connection, message } => {
                context.query_database(connection, message);
                return self.check_whole();
            }
            Event::Closed { to: Node::Database, .. } | Event::Timer { of: Node::Database, .. } => return Ok(()),
            Event::Deliver { to, .. } | Event::Closed { to, .. } | Event::Timer { of: to, .. } => to,
        };
        match whom {
            Node::Broker(id) => {
                let broker = self.brokers.get_mut(&id).expect("it is one of the cluster's");
                if broker.is_paused {
                    broker.held.push(Held(event));
                    return Ok(());
                }
                broker.happen(context, event);
                context.check.broker(&shown(broker))?;
                self.check_whole()
            }
            Node::Client(at) => {
                match event {
                    Event::Deliver { connection, message, .. } => {
                        self.clients[at].deliver(context, connection, message)
                    }
                    Event::Closed { connection, .. } => self.clients[at].closed(connection),
                    Event::Timer { .. } => self.clients[at].on_timer(context),
                    Event::Chaos(_) => {}
                }
                context.check.acknowledgements()
            }
            Node::Database => Ok(()),
        }
    }

    /// Resumes a paused broker and delivers the events that it has missed.
    pub fn resume(&mut self, id: i32) {
        let broker = self.brokers.get_mut(&id).expect("it is one of the cluster's");
        broker.is_paused = false;
        for Held(event) in std::mem::take(&mut broker.held) {
            self.context.timeline.schedule(self.context.now(), event);
        }
    }

    fn check_whole(&mut self) -> Result<(), String> {
        let truth = self.context.database.newest();
        match self.context.database.is_older() {
            true => Ok(()),
            false => self.context.check.whole(&truth.cluster.partition, |id| shown(&self.brokers[&id])),
        }
    }

    fn check_all(&mut self) -> Result<(), String> {
        for broker in self.brokers.values() {
            self.context.check.broker(&shown(broker))?;
        }
        self.check_whole()
    }
}

/// Returns the parts of a broker's state that the checks read.
fn shown(broker: &Broker) -> Replica<'_> {
    let process = broker.process.as_ref();
    let high_watermark = process.and_then(|process| Some((process.life, process.partition.as_ref()?.high_watermark())));
    Replica { id: broker.id, log: &broker.disk.log, high_watermark, has_lost: broker.disk.has_lost }
}

impl Broker {
    fn happen(&mut self, context: &mut Context, event: Event) {
        match event {
            Event::Deliver { to, connection, message } if context.network.is_open(connection, to) => {
                self.deliver(context, connection, message);
            }
            Event::Closed { connection, .. } => self.closed(context, connection),
            Event::Timer { life, timer, .. } => self.on_timer(context, life, timer),
            Event::Deliver { .. } | Event::Chaos(_) => {}
        }
    }
}
