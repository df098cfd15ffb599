//! Balances the loads of members whose subscriptions differ.
//!
//! A member can pass a partition on to any other subscriber of the partition's topic. That member can pass on a
//! partition of another topic, and so on. A chain of such moves is useful if its last member has at least two
//! partitions fewer than its first one. The load of the first member then falls by one, that of the last rises by one,
//! and the others keep theirs. If there is no such chain, the loads are as even as possible (Harvey, Ladner, Lovász,
//! Tamir: Semi-matchings for bipartite graphs and load balancing, 2006).
//!
//! A search visits each subscription at most once, and [`STEPS_MAX`] limits all searches together. When the limit is
//! reached, the loads stay as even as they are.

use super::{MemberIndex, NO_MEMBER, Owners, Subscriptions};
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of subscriptions that all searches of a call of [`balance`] visit.
const STEPS_MAX: usize = 20_000_000;

pub(super) fn balance(group: &Subscriptions, before: &Owners, owners: &mut Owners, loads: &mut [usize]) {
    let held = held(group.members, owners);
    Balancer { group, before, owners, loads, held, steps: 0 }.run();
}

/// Counts, for each member, how many partitions of each topic it has.
fn held(members: usize, owners: &Owners) -> Vec<BTreeMap<usize, usize>> {
    let mut held = vec![BTreeMap::new(); members];
    for (topic, row) in owners.iter().enumerate() {
        for &owner in row.iter().filter(|&&owner| owner != NO_MEMBER) {
            *held[owner as usize].entry(topic).or_insert(0) += 1;
        }
    }
    held
}

struct Balancer<'a> {
    group: &'a Subscriptions,
    before: &'a Owners,
    owners: &'a mut Owners,
    loads: &'a mut [usize],
    held: Vec<BTreeMap<usize, usize>>,
    steps: usize,
}

/// How the search reached a member: the previous member of the chain, and the topic of the partition that it passes on.
type Reached = (MemberIndex, usize);

impl Balancer<'_> {
    fn run(&mut self) {
        let mut from: Vec<MemberIndex> = (0..self.group.members as MemberIndex).collect();
        loop {
            let mut moved = false;
            from.sort_by_key(|&member| std::cmp::Reverse(self.loads[member as usize]));
            for &member in &from {
                while self.steps < STEPS_MAX && self.relieve(member) {
                    moved = true;
                }
            }
            if !moved || self.steps >= STEPS_MAX {
                return;
            }
        }
    }

    /// Moves one partition of load from `member` along a chain to the least loaded member. Returns false if no chain
    /// makes the loads more even.
    fn relieve(&mut self, member: MemberIndex) -> bool {
        let load = self.loads[member as usize];
        if load < 2 {
            return false;
        }
        let mut reached: Vec<Option<Reached>> = vec![None; self.group.members];
        let mut seen = vec![false; self.owners.len()];
        let mut queue = VecDeque::from([member]);
        let mut least = member;
        while let Some(from) = queue.pop_front() {
            for &topic in self.held[from as usize].keys() {
                self.steps += 1;
                if std::mem::replace(&mut seen[topic], true) {
                    continue;
                }
                self.steps += self.group.subscribers[topic].len();
                for &to in &self.group.subscribers[topic] {
                    if to != member && reached[to as usize].is_none() {
                        reached[to as usize] = Some((from, topic));
                        queue.push_back(to);
                        if self.loads[to as usize] < self.loads[least as usize] {
                            least = to;
                        }
                    }
                }
            }
        }
        if self.loads[least as usize] + 2 > load {
            return false;
        }
        self.pass_on(member, least, &reached);
        true
    }

    /// Lets each member of the chain from `first` to `last` pass a partition on to the next one.
    fn pass_on(&mut self, first: MemberIndex, last: MemberIndex, reached: &[Option<Reached>]) {
        self.loads[first as usize] -= 1;
        self.loads[last as usize] += 1;
        let mut to = last;
        while let Some((from, topic)) = reached[to as usize] {
            let partition = self.choose(topic, from, to);
            self.owners[topic][partition] = to;
            *self.held[to as usize].entry(topic).or_insert(0) += 1;
            if let Some(count) = self.held[from as usize].get_mut(&topic) {
                *count -= 1;
                if *count == 0 {
                    self.held[from as usize].remove(&topic);
                }
            }
            to = from;
        }
    }

    /// Chooses which partition of the topic is passed on. The first choice is a partition that `to` had before, and the
    /// second one that `from` did not have before.
    fn choose(&self, topic: usize, from: MemberIndex, to: MemberIndex) -> usize {
        let before = &self.before[topic];
        let of_from = |&partition: &usize| self.owners[topic][partition] == from;
        (0..before.len())
            .filter(of_from)
            .min_by_key(|&partition| match before[partition] {
                owner if owner == to => 0,
                owner if owner != from => 1,
                _ => 2,
            })
            .expect("the chain goes over a topic of which `from` has a partition")
    }
}
