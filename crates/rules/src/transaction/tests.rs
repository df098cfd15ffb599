//! Tests of events and their effects, for a single transactional id.

mod end_txn;
mod requests;
mod transitions;
mod unsure;

use super::*;
use fullbore_wire::Text;

/// The producer id in the states of these tests.
pub(super) const PRODUCER: i64 = 100;
pub(super) const SETTINGS: TransactionSettings = TransactionSettings {
    timeout_max_ms: 900_000,
    partitions_max: 4,
    waiters_max: 3,
    server_version: TransactionVersion::V2,
};
const TIMEOUT_MS: i32 = 60_000;
const COORDINATOR_EPOCH: i32 = 5;

pub(super) fn partition(partition: i32) -> TopicPartition {
    TopicPartition { topic: Text::from_static("t"), partition }
}

/// Returns a state with this epoch. If a transaction is open or is being ended, it has a partition.
pub(super) fn in_state(state: TransactionState, epoch: i16) -> TransactionMetadata {
    let has_partitions = state == TransactionState::Ongoing || state.is_prepared();
    TransactionMetadata {
        producer_id: PRODUCER,
        previous_producer_id: PRODUCER,
        next_producer_id: -1,
        producer_epoch: epoch,
        last_producer_epoch: -1,
        timeout_ms: TIMEOUT_MS,
        state,
        partitions: has_partitions.then(|| partition(0)).into_iter().collect(),
        start_ms: if state == TransactionState::Empty { -1 } else { 100 },
        last_update_ms: 200,
        client_version: TransactionVersion::V2,
    }
}

fn producer(epoch: i16) -> ProducerIdAndEpoch {
    ProducerIdAndEpoch { id: PRODUCER, epoch }
}

/// A state machine under test, with the effects of the last event.
struct Bench {
    transaction: Transaction,
    settings: TransactionSettings,
    now: i64,
    tickets: u64,
    effects: Vec<Effect>,
}

impl Bench {
    fn new() -> Bench {
        let transaction = Transaction::new(COORDINATOR_EPOCH);
        Bench { transaction, settings: SETTINGS, now: 1_000, tickets: 0, effects: Vec::new() }
    }

    fn loaded(record: TransactionMetadata) -> Bench {
        let mut bench = Bench::new();
        let mut effects = Vec::new();
        let turn = &mut Turn { settings: &SETTINGS, now: bench.now, effects: &mut effects };
        bench.transaction = Transaction::load(COORDINATOR_EPOCH, record, turn);
        bench.effects = effects;
        bench
    }

    fn turn<T>(&mut self, event: impl FnOnce(&mut Transaction, &mut Turn<'_>) -> T) -> T {
        self.effects.clear();
        event(&mut self.transaction, &mut Turn { settings: &self.settings, now: self.now, effects: &mut self.effects })
    }

    fn ticket(&mut self) -> RequestTicket {
        self.tickets += 1;
        RequestTicket(self.tickets)
    }

    fn init(&mut self, current: Option<ProducerIdAndEpoch>, wait_ms: Option<i64>) -> RequestTicket {
        let ticket = self.ticket();
        let wait_until = wait_ms.map(|ms| self.now + ms);
        let request = InitProducerId { current, timeout_ms: TIMEOUT_MS, wait_until };
        self.turn(|transaction, turn| transaction.init_producer_id(request, ticket, turn));
        ticket
    }

    fn add(
        &mut self,
        producer: ProducerIdAndEpoch,
        partitions: &[i32],
        version: TransactionVersion,
        wait_ms: Option<i64>,
    ) -> RequestTicket {
        let ticket = self.ticket();
        let wait_until = wait_ms.map(|ms| self.now + ms);
        let partitions = partitions.iter().copied().map(partition).collect();
        let request = AddPartitions { producer, partitions, version, wait_until };
        self.turn(|transaction, turn| transaction.add_partitions(request, ticket, turn));
        ticket
    }

    fn end(&mut self, producer: ProducerIdAndEpoch, is_commit: bool, version: TransactionVersion) -> RequestTicket {
        let ticket = self.ticket();
        let request = EndTxn { producer, is_commit, version };
        self.turn(|transaction, turn| transaction.end_txn(request, ticket, turn));
        ticket
    }

    fn persisted(&mut self, result: Result<(), ErrorCode>) {
        self.turn(|transaction, turn| transaction.persisted(result, turn));
    }

    fn producer_id(&mut self, result: Result<i64, ErrorCode>) {
        self.turn(|transaction, turn| transaction.producer_id(result, turn));
    }

    fn marked(&mut self, decision: DecisionId, partitions: &[i32]) {
        let partitions: Vec<_> = partitions.iter().copied().map(partition).collect();
        self.turn(|transaction, turn| transaction.markers_written(decision, &partitions, turn));
    }

    fn tick(&mut self, ms: i64) {
        self.now += ms;
        self.turn(|transaction, turn| transaction.tick(turn));
    }

    /// Returns the record that must be written. There must be only one.
    fn record(&self) -> &TransactionMetadata {
        let records = self.effects.iter().filter_map(|effect| match effect {
            Effect::Persist(record) => Some(record.as_deref().expect("no tombstone")),
            _ => None,
        });
        let [record] = records.collect::<Vec<_>>()[..] else { panic!("{:?}", self.effects) };
        record
    }

    /// Returns the markers that must be written. There must be only one set of them.
    fn markers(&self) -> &Markers {
        let markers = self.effects.iter().filter_map(|effect| match effect {
            Effect::WriteMarkers(markers) => Some(markers),
            _ => None,
        });
        let [markers] = markers.collect::<Vec<_>>()[..] else { panic!("{:?}", self.effects) };
        markers
    }

    /// Checks that this response is sent, and no other.
    fn assert_answer(&self, ticket: RequestTicket, answer: TransactionAnswer) {
        let answers = self.answers();
        assert_eq!(answers, [(ticket, answer)], "{:?}", self.effects);
    }

    fn answers(&self) -> Vec<(RequestTicket, TransactionAnswer)> {
        let answer = |effect: &Effect| match effect {
            Effect::Answer(ticket, answer) => Some((*ticket, *answer)),
            _ => None,
        };
        self.effects.iter().filter_map(answer).collect()
    }

    fn state(&self) -> &TransactionMetadata {
        self.transaction.describe().expect("known")
    }
}
