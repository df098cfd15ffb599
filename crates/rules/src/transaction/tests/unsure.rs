//! Tests of ids whose last records may have been lost in a power loss.

use super::*;

const NEW_ID: i64 = 900;

impl Bench {
    fn unsure(record: TransactionMetadata) -> Bench {
        let mut bench = Bench::new();
        let mut effects = Vec::new();
        let turn = &mut Turn { settings: &SETTINGS, now: bench.now, effects: &mut effects };
        bench.transaction = Transaction::load_unsure(COORDINATOR_EPOCH, record, turn);
        bench.effects = effects;
        bench
    }

    fn fence_clients(&mut self) {
        self.turn(Transaction::fence_clients);
    }

    /// Checks that clients with these epochs are fenced, and that a new client gets another producer id.
    fn assert_fences(&mut self, epochs: &[i16]) {
        assert!(!self.transaction.is_unsure());
        for &epoch in epochs {
            for version in [TransactionVersion::V0, TransactionVersion::V2] {
                let ticket = self.end(producer(epoch), true, version);
                self.assert_answer(ticket, TransactionAnswer::EndTxn(Err(ErrorCode::PRODUCER_FENCED)));
                let ticket = self.add(producer(epoch), &[1], version, None);
                self.assert_answer(ticket, TransactionAnswer::AddPartitions(Err(ErrorCode::PRODUCER_FENCED)));
            }
            let ticket = self.init(Some(producer(epoch)), None);
            self.assert_answer(ticket, TransactionAnswer::InitProducerId(Err(ErrorCode::PRODUCER_FENCED)));
        }
        let ticket = self.init(None, None);
        assert_eq!(self.effects, [Effect::NeedProducerId]);
        self.producer_id(Ok(NEW_ID));
        self.persisted(Ok(()));
        let fresh = ProducerIdAndEpoch { id: NEW_ID, epoch: 0 };
        self.assert_answer(ticket, TransactionAnswer::InitProducerId(Ok(fresh)));
    }
}

#[test]
fn unsure_id_without_a_transaction_is_fenced_by_a_record() {
    for state in [TransactionState::Empty, TransactionState::CompleteCommit, TransactionState::CompleteAbort] {
        let mut bench = Bench::unsure(in_state(state, 3));
        let record = bench.record();
        assert_eq!((record.producer_id, record.producer_epoch, record.state), (PRODUCER, i16::MAX, state));
        assert_eq!(record.last_update_ms, in_state(state, 3).last_update_ms, "it expires as before");
        bench.persisted(Ok(()));
        bench.assert_fences(&[2, 3, 4, 5]);
    }
}

#[test]
fn unsure_id_whose_record_fails_is_fenced_meanwhile_and_retried() {
    for state in [TransactionState::Empty, TransactionState::CompleteCommit, TransactionState::CompleteAbort] {
        let mut bench = Bench::unsure(in_state(state, 3));
        bench.persisted(Err(ErrorCode::NOT_ENOUGH_REPLICAS));
        assert!(bench.transaction.is_unsure() && bench.transaction.next_deadline().is_none());
        let ticket = bench.end(producer(3), true, TransactionVersion::V2);
        bench.assert_answer(ticket, TransactionAnswer::EndTxn(Err(ErrorCode::PRODUCER_FENCED)));
        bench.fence_clients();
        assert_eq!(bench.record().producer_epoch, i16::MAX);
        bench.persisted(Ok(()));
        bench.assert_fences(&[3]);
        bench.fence_clients();
        assert_eq!(bench.effects, []);
    }
}

#[test]
fn unsure_open_transaction_is_aborted_above_every_epoch() {
    for version in [TransactionVersion::V0, TransactionVersion::V2] {
        let mut bench = Bench::new();
        bench.settings.server_version = version;
        let record = TransactionMetadata { client_version: version, ..in_state(TransactionState::Ongoing, 3) };
        let settings = bench.settings;
        let mut effects = Vec::new();
        let turn = &mut Turn { settings: &settings, now: bench.now, effects: &mut effects };
        bench.transaction = Transaction::load_unsure(COORDINATOR_EPOCH, record, turn);
        bench.effects = effects;
        if version == TransactionVersion::V2 {
            bench.producer_id(Err(ErrorCode::REQUEST_TIMED_OUT));
            assert_eq!(bench.effects, [], "the store of producer ids is away");
            bench.fence_clients();
            bench.producer_id(Ok(800));
        }
        assert_eq!(bench.record().state, TransactionState::PrepareAbort);
        bench.persisted(Ok(()));
        let markers = bench.markers().clone();
        assert_eq!((markers.producer_epoch, markers.is_commit), (i16::MAX, false));
        bench.marked(markers.decision, &[0]);
        assert_eq!(bench.record().producer_epoch, i16::MAX);
        bench.persisted(Ok(()));
        assert_eq!(bench.state().state, TransactionState::CompleteAbort);
        if version == TransactionVersion::V0 {
            bench.assert_fences(&[3, 4, 5]);
        } else {
            assert_eq!((bench.state().producer_id, bench.transaction.is_unsure()), (800, false));
        }
    }
}

#[test]
fn unsure_decision_is_carried_out_in_its_epoch_and_then_fenced() {
    for state in [TransactionState::PrepareCommit, TransactionState::PrepareAbort] {
        let mut bench = Bench::unsure(TransactionMetadata { next_producer_id: -1, ..in_state(state, 4) });
        let markers = bench.markers().clone();
        assert_eq!((markers.producer_epoch, markers.is_commit), (4, state == TransactionState::PrepareCommit));
        bench.fence_clients();
        assert_eq!(bench.effects, [], "its markers come first");
        bench.marked(markers.decision, &[0]);
        assert_eq!(bench.record().producer_epoch, i16::MAX);
        bench.persisted(Err(ErrorCode::REQUEST_TIMED_OUT));
        bench.tick(1_000);
        assert_eq!(bench.record().producer_epoch, i16::MAX);
        bench.persisted(Ok(()));
        bench.assert_fences(&[3, 4, 5]);
    }
}

#[test]
fn client_that_restarts_before_an_unsure_id_is_fenced_gets_another_producer_id() {
    let mut bench = Bench::unsure(in_state(TransactionState::Empty, 3));
    let ticket = bench.init(None, Some(20));
    assert_eq!(bench.effects, [], "it waits for the record");
    bench.persisted(Err(ErrorCode::NOT_ENOUGH_REPLICAS));
    assert_eq!(bench.effects, [Effect::NeedProducerId]);
    bench.producer_id(Ok(NEW_ID));
    bench.persisted(Ok(()));
    let fresh = ProducerIdAndEpoch { id: NEW_ID, epoch: 0 };
    bench.assert_answer(ticket, TransactionAnswer::InitProducerId(Ok(fresh)));
    assert!(!bench.transaction.is_unsure());
}

#[test]
fn expired_id_is_not_unsure() {
    assert!(!Bench::unsure(in_state(TransactionState::Dead, 3)).transaction.is_unsure());
}
