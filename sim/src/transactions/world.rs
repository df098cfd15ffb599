//! The world of transactions: brokers, clients and consumers, and the random choice of the next step.

use std::collections::BTreeMap;

use super::broker::Broker;
use super::check::Check;
use super::client::{Client, Next};
use super::diskless::Index;
use super::entry::{
    BROKERS, BrokerId, COMPACTED, DATA, DISKLESS, MADE_AGAIN, OFFSETS, PARTITIONS, PartitionId, Payload, STATE,
    TransactionalId, state_of,
};
use super::fault::Fault;
use super::message::{Answer, BrokerProcess, ClientProcess, ClientRequest, Message, Request, Write};
use super::partition::Partition;
use super::reader::{Reader, compact};
use fullbore_rules::sequence::Stamp;
use fullbore_rules::transaction::{TransactionSettings, TransactionVersion};
use fullbore_schedules::Random;

pub const TIMEOUT_MS: i32 = 1_000;
const EXPIRATION_MS: i64 = 20_000;
const IDS: usize = 3;
/// How many client processes each transactional id has. All except one are zombies.
const CLIENTS: usize = 2;
/// Maximum time by which a message is later than usual.
const LATE_MAX_MS: usize = 800;
/// Maximum number of messages in flight. Further messages are lost.
const NETWORK_MAX: usize = 150;

pub struct World {
    pub random: Random,
    pub fault: Option<Fault>,
    pub settings: TransactionSettings,
    pub now: i64,
    pub brokers: Vec<Broker>,
    pub partitions: Vec<Partition>,
    network: Vec<Message>,
    /// Very late messages, each with the time at which it enters the network.
    late: Vec<(i64, Message)>,
    /// The index of the diskless partition.
    pub index: Index,
    pub check: Check,
    clients: Vec<Client>,
    pub readers: Vec<Reader>,
    /// True if the world has only a standalone broker, which flushes its writes and may lose power.
    pub is_alone: bool,
    /// True after a power loss, until the broker has aborted transactions whose state may be lost.
    pub is_unsettled: bool,
    incarnations: usize,
    numbers: u64,
    producer_ids: i64,
    pub tickets: u64,
    pub parked: u64,
    pub elections: u64,
    /// True at the end of the run, when there are no more faults.
    pub is_quiet: bool,
    /// The error of a check in a function that returns no errors. The current step fails with this error.
    pub wrong: Option<String>,
}

impl World {
    pub fn new(seed: u64, fault: Option<Fault>) -> World {
        let mut random = Random::new(seed);
        let server_version = if random.one_in(3) { TransactionVersion::V0 } else { TransactionVersion::V2 };
        let settings =
            TransactionSettings { timeout_max_ms: TIMEOUT_MS, partitions_max: 16, waiters_max: 2, server_version };
        let mut world = World {
            fault,
            settings,
            now: 100_000,
            brokers: (0..BROKERS).map(Broker::new).collect(),
            partitions: Vec::new(),
            network: Vec::new(),
            late: Vec::new(),
            index: Index::default(),
            check: Check::default(),
            clients: Vec::new(),
            readers: vec![Reader::default(); DATA],
            is_alone: random.one_in(4),
            is_unsettled: false,
            incarnations: 0,
            numbers: 0,
            producer_ids: 0,
            tickets: 0,
            parked: 0,
            elections: 0,
            is_quiet: false,
            wrong: None,
            random,
        };
        let brokers = if world.is_alone { 1 } else { BROKERS };
        world.brokers.iter_mut().skip(brokers).for_each(|broker| broker.is_up = false);
        world.partitions = (0..PARTITIONS).map(|at| Partition::new(at % brokers, 1, 1)).collect();
        for id in (0..IDS).flat_map(|id| [id; CLIENTS]) {
            let client = world.new_client(id);
            world.clients.push(client);
        }
        (0..PARTITIONS).filter(|at| *at != DISKLESS).for_each(|at| world.publish(at));
        world
    }

    fn new_client(&mut self, id: TransactionalId) -> Client {
        self.incarnations += 1;
        let is_new = self.settings.server_version == TransactionVersion::V2 && !self.random.one_in(4);
        let version = if is_new { TransactionVersion::V2 } else { TransactionVersion::V0 };
        Client::new(self.incarnations, id, version)
    }

    pub fn new_producer_id(&mut self) -> i64 {
        self.producer_ids += 1;
        self.producer_ids
    }

    pub fn send(&mut self, message: Message) {
        let is_news = matches!(message, Message::Leads { .. });
        if !self.is_quiet && self.random.one_in(20) {
            let from = self.now + self.random.below(LATE_MAX_MS) as i64;
            if is_news || self.late.len() < NETWORK_MAX {
                self.late.push((from, message));
            }
            return;
        }
        if self.network.len() < NETWORK_MAX || is_news || self.is_quiet {
            self.network.push(message);
        }
    }

    /// Notifies every broker of the leader of a partition.
    fn publish(&mut self, at: PartitionId) {
        let (epoch, leader) = (self.partitions[at].epoch, self.partitions[at].leader);
        for broker in 0..BROKERS {
            let to = self.brokers[broker].process();
            self.send(Message::Leads { to, partition: at, epoch, leader });
        }
    }

    pub fn step(&mut self) -> Result<(), String> {
        match self.random.below(64) {
            0..=15 => self.client_step(),
            16..=37 => self.arrive()?,
            38..=49 => {
                for at in 0..PARTITIONS {
                    if self.random.one_in(3) {
                        self.replicate(at)?;
                    }
                }
            }
            50..=55 => self.coordinate()?,
            56..=58 => self.read()?,
            59..=61 => self.now += self.random.below(25) as i64,
            62 if self.random.one_in(2) => self.write_plain()?,
            62 => self.recover(),
            _ => self.chaos()?,
        }
        self.wrong.take().map_or(Ok(()), Err)
    }

    fn any_broker(&mut self) -> BrokerId {
        if self.is_alone { 0 } else { self.random.below(BROKERS) }
    }

    fn any_broker_up(&mut self) -> Option<BrokerId> {
        let at = self.any_broker();
        let broker = &self.brokers[at];
        (broker.is_up && !broker.is_paused).then_some(at)
    }

    /// Delivers a message. The message may stay in the network and arrive again.
    fn arrive(&mut self) -> Result<(), String> {
        if let Some(at) = self.late.iter().position(|(from, _)| *from <= self.now) {
            let (_, message) = self.late.swap_remove(at);
            self.network.push(message);
        }
        if self.network.is_empty() {
            return Ok(());
        }
        // Half of the deliveries choose among the oldest messages, so that no message waits for ever.
        let count = self.network.len();
        let at = if self.random.one_in(2) { self.random.below(count) } else { self.random.below(count.min(12)) };
        let to_paused = self.network[at].to().is_some_and(|to| self.brokers[to.broker].is_paused);
        if to_paused {
            return Ok(());
        }
        let is_news = matches!(self.network[at], Message::Leads { .. });
        let message = if self.random.one_in(6) { self.network[at].clone() } else { self.network.remove(at) };
        if !is_news && self.random.one_in(15) {
            return Ok(());
        }
        self.deliver(message)
    }

    fn coordinate(&mut self) -> Result<(), String> {
        let Some(broker) = self.any_broker_up() else { return Ok(()) };
        self.drive(broker)?;
        self.settle_once(broker)?;
        for place in self.places(broker) {
            match self.random.below(9) {
                0..=2 => self.report(place)?,
                3 => self.mark_again(place),
                4 | 5 => self.give_id(place)?,
                6 => self.event(place, |transaction, turn| transaction.tick(turn))?,
                7 => {
                    self.event(place, |transaction, turn| transaction.time_out(turn))?;
                    self.event(place, |transaction, turn| transaction.expire(EXPIRATION_MS, turn))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn read(&mut self) -> Result<(), String> {
        let Some(broker) = self.any_broker_up() else { return Ok(()) };
        let at = self.random.below(DATA);
        let (partition, random) = (&mut self.partitions[at], &mut self.random);
        if at == DISKLESS {
            return self.readers[at].fetch_diskless(partition, &self.index, self.fault, random);
        }
        self.readers[at].fetch(at, partition, broker, self.fault, random)?;
        if at == COMPACTED && partition.is_led_by(broker) {
            compact(partition, broker, self.fault)?;
        }
        Ok(())
    }

    /// Writes the only record of a new producer without transactions.
    fn write_plain(&mut self) -> Result<(), String> {
        let partition = self.random.below(DATA);
        let producer_id = self.new_producer_id();
        let stamp = Stamp { producer_id, producer_epoch: 0, base_sequence: 0, record_count: 1 };
        let write = Write { partition, life: self.partitions[partition].life, stamp, payload: Payload::Plain };
        let to = self.brokers[self.partitions[partition].leader].process();
        let by = ClientProcess { slot: usize::MAX, incarnation: 0 };
        let request = Request::Write(write);
        let requested =
            ClientRequest { by, number: 0, id: 0, version: TransactionVersion::V0, transaction: None, request };
        self.deliver(Message::Ask(to, requested))
    }

    fn chaos(&mut self) -> Result<(), String> {
        let at = self.random.below(PARTITIONS);
        let broker = self.any_broker();
        match self.random.below(16) {
            0..=2 => self.elect(at),
            4 => self.kill(broker),
            5 if self.random.one_in(3) => self.brokers[broker].is_paused = self.brokers[broker].is_up,
            10 if self.random.one_in(3) => self.now += i64::from(TIMEOUT_MS),
            11 if self.random.one_in(12) => self.make_again(),
            12 if self.fault == Some(Fault::EvictsOpenProducer) => {
                self.partitions[at].replicas[broker].evict_open(self.now);
            }
            13 | 14 => self.keep_snapshot(at),
            6 => self.brokers[broker].has_store = self.random.one_in(4),
            7 if self.is_alone && self.random.one_in(2) => self.cut_power(),
            _ => {}
        }
        Ok(())
    }

    /// Starts a killed broker, or resumes a paused one.
    fn recover(&mut self) {
        let broker = self.any_broker();
        match self.brokers[broker].is_up {
            true if self.random.one_in(3) => self.brokers[broker].has_store = true,
            true => self.brokers[broker].is_paused = false,
            false => self.start(broker),
        }
    }

    /// Elects a leader, which may be the same one in a new epoch.
    fn elect(&mut self, at: PartitionId) {
        let leader = self.random.below(BROKERS);
        if self.brokers[leader].is_up && at != DISKLESS {
            self.elections += 1;
            self.partitions[at].elect(leader, &mut self.random);
            self.publish(at);
        }
    }

    /// Kills a broker. Other brokers take over its leaderships, or it leads again after its restart.
    pub fn kill(&mut self, broker: BrokerId) {
        if !self.brokers[broker].is_up {
            return;
        }
        self.brokers[broker].kill();
        self.partitions.iter_mut().for_each(|partition| partition.replicas[broker].crash());
        let led: Vec<_> = (0..PARTITIONS).filter(|at| self.partitions[*at].leader == broker).collect();
        for at in led {
            self.elect(at);
        }
    }

    /// Starts a broker. The partitions that it still leads get a new epoch.
    fn start(&mut self, broker: BrokerId) {
        self.brokers[broker].start();
        for at in (0..PARTITIONS).filter(|at| *at != DISKLESS) {
            let partition = &mut self.partitions[at];
            if partition.leader == broker {
                partition.elect(broker, &mut self.random);
                self.elections += 1;
            }
            self.publish(at);
        }
    }

    /// Deletes the topic of [`MADE_AGAIN`](super::entry::MADE_AGAIN) and creates it again.
    fn make_again(&mut self) {
        let before = &self.partitions[MADE_AGAIN];
        let (leader, epoch, life) = (before.leader, before.epoch + 1, before.life + 1);
        self.partitions[MADE_AGAIN] = Partition::new(leader, epoch, life);
        self.brokers.iter_mut().for_each(|broker| broker.waiting.retain(|waiting| waiting.partition != MADE_AGAIN));
        self.publish(MADE_AGAIN);
    }

    fn keep_snapshot(&mut self, at: PartitionId) {
        let partition = &mut self.partitions[at];
        let replica = &partition.replicas[partition.leader];
        // A broker writes snapshots only of segments that are closed and replicated.
        if partition.is_led_by(partition.leader)
            && replica.log.len() == partition.committed.len()
            && let Some(snapshot) = replica.snapshot(self.fault)
        {
            partition.keep_snapshot(snapshot);
        }
    }

    fn client_step(&mut self) {
        // Usually one process of each id is active, while the others are its zombies.
        let id = self.random.below(IDS);
        let active = (self.now / 4_000) as usize % CLIENTS;
        let slot = id * CLIENTS + if self.random.one_in(40) { self.random.below(CLIENTS) } else { active };
        match self.clients[slot].next(&mut self.random) {
            Next::Crash => self.restart(slot),
            Next::SendAgain => self.send_again(slot),
            Next::Call(request) => self.call(slot, request),
            Next::Open => {
                let number = self.check.begin(id);
                self.clients[slot].begin(number, &mut self.random);
            }
            Next::Write(partition) => self.write_next(slot, partition),
            Next::Commit => self.commit_offsets(slot),
        }
    }

    fn restart(&mut self, slot: usize) {
        let id = self.clients[slot].id;
        self.clients[slot] = self.new_client(id);
    }

    fn call(&mut self, slot: usize, request: Request) {
        self.numbers += 1;
        let number = self.numbers;
        let client = &mut self.clients[slot];
        client.call = Some((number, request.clone()));
        if let (Request::End(_, is_commit), Some(open)) = (&request, &client.open) {
            self.check.transactions[open.number].requested = Some(*is_commit);
        }
        self.transmit(slot, number, request);
    }

    fn write_next(&mut self, slot: usize, partition: PartitionId) {
        self.numbers += 1;
        let (number, life) = (self.numbers, self.partitions[partition].life);
        let client = &mut self.clients[slot];
        let (Some(producer), Some((base_sequence, copied))) = (client.producer, client.write(partition)) else {
            return;
        };
        let Some(open) = &client.open else { return };
        let stamp = Stamp { producer_id: producer.id, producer_epoch: producer.epoch, base_sequence, record_count: 1 };
        let payload = Payload::Number { id: client.id, number: copied, transaction: open.number };
        let write = Write { partition, life, stamp, payload };
        self.check.transactions[open.number].written.insert(copied, (partition, life));
        client.unanswered.push((number, write.clone()));
        self.transmit(slot, number, Request::Write(write));
    }

    fn commit_offsets(&mut self, slot: usize) {
        let client = &self.clients[slot];
        let (Some(producer), Some(open)) = (client.producer, &client.open) else { return };
        let payload = Payload::Offset { id: client.id, upto: open.copied, transaction: open.number };
        let (producer_id, producer_epoch) = (producer.id, producer.epoch);
        let stamp = Stamp { producer_id, producer_epoch, base_sequence: -1, record_count: 1 };
        self.call(slot, Request::Write(Write { partition: OFFSETS, life: 1, stamp, payload }));
    }

    fn send_again(&mut self, slot: usize) {
        let client = &self.clients[slot];
        let mut requests: Vec<_> = client.call.clone().into_iter().collect();
        requests.extend(client.unanswered.iter().map(|(number, write)| (*number, Request::Write(write.clone()))));
        for (number, request) in requests {
            let of_it = |requested: &ClientRequest| requested.by.slot == slot && requested.number == number;
            let is_under_way = self
                .network
                .iter()
                .any(|message| matches!(message, Message::Ask(_, requested) | Message::Answer(requested, _) if of_it(requested)));
            if !is_under_way || self.random.one_in(8) {
                self.transmit(slot, number, request);
            }
        }
    }

    fn transmit(&mut self, slot: usize, number: u64, request: Request) {
        let Client { incarnation, id, version, .. } = self.clients[slot];
        let partition = match &request {
            Request::Write(write) => write.partition,
            Request::FetchOffset => OFFSETS,
            Request::Init(_) | Request::Add(..) | Request::End(..) => state_of(id),
        };
        let leader = self.partitions[partition].leader;
        let strays = self.random.one_in(if partition == DISKLESS { 3 } else { 8 });
        let broker = if strays { self.random.below(BROKERS) } else { leader };
        let transaction = self.clients[slot].open.as_ref().map(|open| open.number);
        let by = ClientProcess { slot, incarnation };
        let requested = ClientRequest { by, number, id, version, transaction, request };
        let to: BrokerProcess = self.brokers[broker].process();
        self.send(Message::Ask(to, requested));
    }

    pub fn client_answered(&mut self, requested: &ClientRequest, answer: Answer) {
        let ClientProcess { slot, incarnation } = requested.by;
        if self.clients.get(slot).is_none_or(|client| client.incarnation != incarnation) {
            return;
        }
        let client = &mut self.clients[slot];
        let goes_on = match (&requested.request, answer) {
            _ if client.call.as_ref().is_some_and(|(number, _)| *number == requested.number) => {
                client.answered(&requested.request, answer)
            }
            (Request::Write(_), Answer::Written(result)) => client.written(requested.number, result),
            _ => true,
        };
        if !goes_on {
            return self.restart(slot);
        }
        let is_end = matches!(requested.request, Request::End(..) | Request::Init(_)) && client.call.is_none();
        if is_end && !requested.version.supports_epoch_bump() {
            self.forget_late(requested.by);
        }
    }

    /// Drops the client's late requests. In the old protocol they look like requests of the next transaction.
    fn forget_late(&mut self, by: ClientProcess) {
        self.forget(|message| matches!(message, Message::Ask(_, requested) if requested.by == by));
        self.brokers.iter_mut().for_each(|broker| broker.parked.retain(|_, parked| parked.requested.by != by));
    }

    /// Drops the messages that `which` selects.
    pub fn forget(&mut self, which: impl Fn(&Message) -> bool) {
        self.network.retain(|message| !which(message));
        self.late.retain(|(_, message)| !which(message));
    }

    /// Ends all faults and all activity of clients. Then every transaction and every request must end.
    pub fn end(&mut self) -> Result<(), String> {
        self.is_quiet = true;
        self.network.extend(self.late.drain(..).map(|(_, message)| message));
        self.brokers.iter_mut().for_each(|broker| (broker.is_paused, broker.has_store) = (false, true));
        let brokers = if self.is_alone { 1 } else { BROKERS };
        (0..brokers)
            .filter(|at| !self.brokers[*at].is_up)
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|at| self.start(at));
        for _ in 0..60 {
            while !self.network.is_empty() {
                let message = self.network.remove(0);
                self.deliver(message)?;
            }
            (0..PARTITIONS).try_for_each(|at| self.replicate(at))?;
            for broker in 0..brokers {
                self.drive(broker)?;
                self.settle_once(broker)?;
            }
            for place in (0..BROKERS).flat_map(|broker| self.places(broker)).collect::<Vec<_>>() {
                self.report(place)?;
                self.give_id(place)?;
                self.mark_again(place);
                self.event(place, |transaction, turn| transaction.tick(turn))?;
                self.event(place, |transaction, turn| transaction.time_out(turn))?;
            }
            self.now += 100;
        }
        self.check_end()
    }

    fn check_end(&mut self) -> Result<(), String> {
        self.wrong.take().map_or(Ok(()), Err)?;
        let (end, stable) = (self.index.log.len(), self.index.last_stable(self.fault));
        if stable != end {
            return Err(format!("the index ends at {end}, and is stable up to {stable}"));
        }
        while self.readers[DISKLESS].position < end {
            let partition = &self.partitions[DISKLESS];
            self.readers[DISKLESS].fetch_diskless(partition, &self.index, self.fault, &mut self.random)?;
        }
        for at in (0..STATE).filter(|at| *at != DISKLESS) {
            let partition = &mut self.partitions[at];
            let leader = partition.leader;
            let end = partition.replicas[leader].log.len();
            let stable = partition.replicas[leader].last_stable(self.fault);
            if stable != end || !partition.is_led_by(leader) {
                return Err(format!("{at} ends at {end}, and is stable up to {stable}: {:?}", partition.open));
            }
            if at < DATA {
                let reader = &mut self.readers[at];
                while reader.position < end {
                    reader.fetch(at, partition, leader, self.fault, &mut self.random)?;
                }
            }
        }
        for place in (0..BROKERS).flat_map(|broker| self.places(broker)).collect::<Vec<_>>() {
            let machine = &self.brokers[place.broker].coordinators[&place.partition].machines[&place.id];
            let state = machine.transaction.describe().map(|state| state.state);
            if !state.map_or(machine.transaction.is_vacant(), |state| state.is_expiration_allowed()) {
                return Err(format!("{place:?} does not end: {state:?}"));
            }
        }
        let groups = self.brokers[self.partitions[OFFSETS].leader].groups.as_ref();
        let offset =
            |id| groups.and_then(|groups| groups.stable(id)).ok_or_else(|| format!("{id} has no stable offset"));
        let copied = (0..IDS).map(|id| Ok((id, offset(id)?))).collect::<Result<BTreeMap<_, _>, String>>()?;
        self.check.end(&self.partitions, &copied)
    }
}
