//! Carries out the faults of a schedule. Leaves out faults that no cluster could survive, because they would prove
//! nothing.

use fullbore_rules::replica::PartitionRegistration;

use super::World;
use crate::broker::Broker;
use crate::chaos_event::ChaosEvent;
use crate::cluster::Command;
use crate::context::Context;
use crate::network::Node;

impl World {
    pub fn apply_chaos(&mut self, what: ChaosEvent) {
        let (now, timeout) = (self.context.now(), self.context.settings.session_timeout_us);
        match what {
            ChaosEvent::Start(id) => self.start(id),
            ChaosEvent::Kill(id) => self.of(id, |broker, context| broker.kill(context)),
            ChaosEvent::Stop(id) => self.of(id, |broker, _| broker.stop()),
            ChaosEvent::PowerCut(id) if self.may_lose(id) => self.of(id, |broker, context| broker.power_cut(context)),
            ChaosEvent::PowerCut(_) => {}
            ChaosEvent::Fill(id) => self.fill(id, true),
            ChaosEvent::Free(id) => self.fill(id, false),
            ChaosEvent::Copy(id) => self.of(id, |broker, _| broker.copy_disk()),
            ChaosEvent::PutBack(id) if self.may_be_older(id) => self.of(id, |broker, context| broker.put_back(context)),
            ChaosEvent::PutBack(_) => {}
            ChaosEvent::Pause(id, us) => {
                self.of(id, |broker, context| {
                    broker.is_paused = broker.process.is_some();
                    context.check.unwell(id, now + us);
                });
                self.context.schedule_chaos(now + us, ChaosEvent::Resume(id));
            }
            ChaosEvent::Resume(id) => self.resume(id),
            ChaosEvent::Break => {
                if let Some(connection) = self.context.network.any(&mut self.context.random) {
                    self.context.break_off(connection);
                }
            }
            ChaosEvent::Stall(us) => {
                if let Some(connection) = self.context.network.any(&mut self.context.random) {
                    self.context.network.stall(connection, now + us);
                    // The stalled connection may carry a broker's heartbeats, so the check must accept late ones.
                    self.brokers.keys().for_each(|id| self.context.check.unwell(*id, now + us));
                }
            }
            ChaosEvent::StallCommands(us) => {
                for connection in self.brokers.values().filter_map(Broker::transactions) {
                    self.context.network.stall(connection, now + us);
                }
            }
            ChaosEvent::Cut(from, to) => {
                self.context.network.cut(from, to);
                self.all_unwell(i64::MAX / 2, &[from, to]);
            }
            ChaosEvent::Heal => {
                self.context.network.heal();
                for (id, _) in self.context.running.clone() {
                    self.context.check.heal(id, now + timeout);
                }
            }
            ChaosEvent::DatabaseDown => {
                self.context.database.is_down = true;
                self.context.close_all(Node::Database);
            }
            ChaosEvent::DatabaseUp => self.context.database.is_down = false,
            ChaosEvent::LoseAnswer => self.context.loses_answer = true,
            ChaosEvent::RestoreOlder(by) if self.all_know_more(by) => self.context.database.restore_older(by),
            ChaosEvent::RestoreOlder(_) => {}
            ChaosEvent::RestoreNewest => self.context.database.restore_newest(),
            ChaosEvent::Prefer(id) => self.of(id, |broker, context| broker.request(context, Command::ElectPreferred)),
        }
    }

    fn of(&mut self, id: i32, what: impl FnOnce(&mut Broker, &mut Context)) {
        let broker = self.brokers.get_mut(&id).expect("it is one of the cluster's");
        what(broker, &mut self.context);
        let now = self.context.now();
        self.context.check.unwell(id, now);
    }

    /// Fills the broker's disk, or frees space on it.
    pub fn fill(&mut self, id: i32, is_full: bool) {
        self.brokers.get_mut(&id).expect("it is one of the cluster's").disk.is_full = is_full;
    }

    /// Starts the broker unless it is running.
    pub fn start(&mut self, id: i32) {
        self.of(id, |broker, context| broker.start(context));
    }

    fn all_unwell(&mut self, until: i64, of: &[Node]) {
        if of.contains(&Node::Database) {
            for node in of {
                if let Node::Broker(id) = node {
                    self.context.check.unwell(*id, until);
                }
            }
        }
    }

    /// Returns true if a power loss of this broker loses no committed record, for example because it flushes each
    /// write. Otherwise the unflushed records must be on other brokers. For that, no other disk may have lost records,
    /// and one of them must be in the ISR or ELR, also after pending changes of the ISR. Returns false if the broker's
    /// disk is a copy that was taken while a process ran. Only the heartbeat number reveals such a copy, and a power
    /// loss invalidates this number.
    fn may_lose(&self, id: i32) -> bool {
        if self.brokers[&id].disk.is_live_copy {
            return false;
        }
        if self.context.settings.flushes {
            return true;
        }
        let newest = self.context.database.newest();
        let partition: &PartitionRegistration = &newest.cluster.partition;
        let is_kept = |ids: &[i32]| ids.iter().any(|other| *other != id && self.brokers[other].disk.is_whole());
        let may_lead = [&partition.isr[..], &partition.elr].concat();
        let is_alone_soon = self.brokers.values().any(|broker| broker.requests_for_isr_without(&is_kept));
        let is_one = self.brokers.values().all(|broker| broker.id == id || broker.disk.is_whole());
        !self.context.database.is_older() && is_one && is_kept(&may_lead) && !is_alone_soon
    }

    /// Returns true if an older copy may replace this broker's disk. Another replica must have every record, the
    /// cluster must know of all losses of other brokers, and the database must be able to recognise the copy.
    fn may_be_older(&self, id: i32) -> bool {
        let newest = self.context.database.newest();
        let replicas = newest.cluster.partition.replicas.iter().filter(|other| **other != id);
        let mut disks = replicas.map(|other| &self.brokers[other].disk);
        let has_all = disks.any(|disk| self.context.check.is_whole(&disk.log));
        let are_whole = self.brokers.values().all(|broker| broker.id == id || broker.disk.is_whole());
        let is_known = self.brokers[&id].is_copy_known(&self.context);
        !self.context.database.is_older() && are_whole && has_all && is_known
    }

    /// Returns true if every broker would notice that the database is older by `by` versions. For that, the broker must
    /// have seen a version that the older database lacks.
    fn all_know_more(&self, by: usize) -> bool {
        let newest = self.context.database.newest().number;
        self.brokers.values().all(|broker| broker.known().is_some_and(|(number, _)| number + by > newest))
    }
}
