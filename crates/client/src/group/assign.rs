//! The assignors of Kafka's consumers. The leader of a classic group runs one of them. Assignors have no state and
//! ignore racks.
//!
//! Range and roundrobin assign exactly like Java's assignors, so that a change of leader moves no partition. Sticky
//! balances like Java's, but may choose other partitions. Invariant: every partition of a subscribed topic has exactly
//! one owner, which has subscribed to the topic. There is one exception: under cooperative-sticky, a partition that
//! moves to another member has no owner for one rebalance.

use fullbore_wire::Text;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

/// A partition, by topic name and number.
pub type TopicPartition = (Text, i32);

/// A member of a group with its subscription.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscriber {
    /// The member's id.
    pub id: Text,
    /// The name of a static member (group.instance.id), or `None` for a dynamic member.
    pub instance: Option<Text>,
    /// The topics that the member has subscribed to.
    pub topics: Vec<Text>,
    /// The partitions that the member owns.
    pub owned: Vec<TopicPartition>,
    /// The generation in which the member got its partitions, or -1 if it is unknown.
    pub generation: i32,
}

/// Decides which member gets which partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assignor {
    /// Assigns each member a range of each topic's partitions.
    Range,
    /// Assigns the partitions of all topics to the members in turn.
    RoundRobin,
    /// Balances the number of partitions per member. Members keep their partitions where the balance allows it.
    CooperativeSticky,
}

impl Assignor {
    /// All assignors.
    pub const ALL: [Assignor; 3] = [Assignor::Range, Assignor::RoundRobin, Assignor::CooperativeSticky];

    /// Returns the name of the assignor in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Assignor::Range => "range",
            Assignor::RoundRobin => "roundrobin",
            Assignor::CooperativeSticky => "cooperative-sticky",
        }
    }

    /// Returns the assignor that has this name in the protocol, or this class name in Java. Returns `None` for any
    /// other name.
    pub fn named(name: &str) -> Option<Assignor> {
        let short = name.rsplit('.').next().unwrap_or(name);
        let class = |assignor: Assignor| match assignor {
            Assignor::Range => "RangeAssignor",
            Assignor::RoundRobin => "RoundRobinAssignor",
            Assignor::CooperativeSticky => "CooperativeStickyAssignor",
        };
        Assignor::ALL.into_iter().find(|assignor| assignor.name() == name || class(*assignor) == short)
    }

    /// Returns the partitions of each member. `counts` has the number of partitions of each existing topic.
    pub fn assign(self, members: &[Subscriber], counts: &BTreeMap<Text, i32>) -> BTreeMap<Text, Vec<TopicPartition>> {
        let mut sorted: Vec<&Subscriber> = members.iter().collect();
        // Static members come first, sorted by group.instance.id. Their member ids would not give a stable order,
        // because they change at each start.
        sorted.sort_by_key(|member| (member.instance.is_none(), member.instance.clone(), member.id.clone()));
        let mut given: BTreeMap<Text, Vec<TopicPartition>> =
            members.iter().map(|member| (member.id.clone(), Vec::new())).collect();
        match self {
            Assignor::Range => range(&sorted, counts, &mut given),
            Assignor::RoundRobin => round_robin(&sorted, counts, &mut given),
            Assignor::CooperativeSticky => {
                sticky(&sorted, counts, &mut given);
                withhold_what_moves(&sorted, &mut given);
            }
        }
        given
    }
}

type Given = BTreeMap<Text, Vec<TopicPartition>>;

fn give(given: &mut Given, to: &Text, partition: TopicPartition) {
    given.entry(to.clone()).or_default().push(partition);
}

fn range(members: &[&Subscriber], counts: &BTreeMap<Text, i32>, given: &mut Given) {
    for (topic, count) in counts {
        let wanting: Vec<_> = members.iter().filter(|member| member.topics.contains(topic)).collect();
        let Ok(members) = i32::try_from(wanting.len()) else { continue };
        let mut next = 0;
        for (at, member) in (0..members).zip(wanting) {
            let share = count / members + i32::from(at < count % members);
            (next..next + share).for_each(|partition| give(given, &member.id, (topic.clone(), partition)));
            next += share;
        }
    }
}

fn round_robin(members: &[&Subscriber], counts: &BTreeMap<Text, i32>, given: &mut Given) {
    let mut turn = 0;
    for (topic, count) in counts.iter().filter(|(topic, _)| members.iter().any(|of| of.topics.contains(topic))) {
        for partition in 0..*count {
            while !members[turn % members.len()].topics.contains(topic) {
                turn += 1;
            }
            give(given, &members[turn % members.len()].id, (topic.clone(), partition));
            turn += 1;
        }
    }
}

/// Returns for each partition the member that may keep it: the one that claims the partition with the newest
/// generation. If two members claim it with this generation, neither may keep it.
fn owners<'a>(members: &[&'a Subscriber], counts: &BTreeMap<Text, i32>) -> BTreeMap<TopicPartition, &'a Subscriber> {
    let mut claims: HashMap<&TopicPartition, Vec<&Subscriber>> = HashMap::new();
    for member in members {
        for partition in member.owned.iter().collect::<BTreeSet<_>>() {
            claims.entry(partition).or_default().push(member);
        }
    }
    let exists =
        |(topic, partition): &TopicPartition| counts.get(topic).is_some_and(|count| (0..*count).contains(partition));
    let owner = |(partition, claims): (&TopicPartition, Vec<&'a Subscriber>)| {
        let newest = claims.iter().map(|member| member.generation).max()?;
        let mut newest = claims.into_iter().filter(|member| member.generation == newest);
        let owner = newest.next().filter(|_| newest.next().is_none())?;
        (exists(partition) && owner.topics.contains(&partition.0)).then(|| (partition.clone(), owner))
    };
    claims.into_iter().filter_map(owner).collect()
}

fn sticky(members: &[&Subscriber], counts: &BTreeMap<Text, i32>, given: &mut Given) {
    let kept: BTreeMap<TopicPartition, &Subscriber> = owners(members, counts);
    let mut shares: Vec<Share<'_>> = members.iter().map(|member| Share::of(member)).collect();
    let places: HashMap<&Text, usize> = members.iter().enumerate().map(|(at, member)| (&member.id, at)).collect();
    kept.iter().for_each(|(partition, owner)| shares[places[&owner.id]].take(partition.clone()));
    // Partitions without an owner are assigned after the owned ones, each to the member with the fewest partitions. In
    // the other order a member could exceed its share, and an owned partition would have to move.
    for (topic, count) in counts {
        let wanting: Vec<usize> = (0..shares.len()).filter(|at| shares[*at].topics.contains(topic)).collect();
        for partition in (0..*count).map(|partition| (topic.clone(), partition)).filter(|of| !kept.contains_key(of)) {
            let least = wanting.iter().min_by_key(|at| shares[**at].len());
            least.into_iter().for_each(|at| shares[*at].take(partition.clone()));
        }
    }
    // This loop ends, because each move brings the counts of two members closer together.
    while move_one(&mut shares) {}
    for Share { member, others, owned, .. } in shares {
        given.entry(member.id.clone()).or_default().extend(owned.into_iter().chain(others));
    }
}

/// The partitions of a member during the balancing.
struct Share<'a> {
    member: &'a Subscriber,
    topics: HashSet<&'a Text>,
    owns: HashSet<&'a TopicPartition>,
    /// The partitions that the member already owned. They move to other members only when `others` is exhausted, from
    /// the back.
    owned: Vec<TopicPartition>,
    /// The partitions that the member did not own before. They move to other members first, from the front.
    others: VecDeque<TopicPartition>,
}

impl<'a> Share<'a> {
    fn of(member: &'a Subscriber) -> Self {
        let (topics, owns) = (member.topics.iter().collect(), member.owned.iter().collect());
        Share { member, topics, owns, owned: Vec::new(), others: VecDeque::new() }
    }

    fn len(&self) -> usize {
        self.owned.len() + self.others.len()
    }

    fn take(&mut self, partition: TopicPartition) {
        match self.owns.contains(&partition) {
            true => self.owned.push(partition),
            false => self.others.push_back(partition),
        }
    }

    /// Removes and returns a partition of one of these topics, so that another member can get it. Returns `None` if the
    /// share has no such partition.
    fn give_up(&mut self, topics: &HashSet<&Text>) -> Option<TopicPartition> {
        let is_wanted = |(topic, _): &TopicPartition| topics.contains(topic);
        if let Some(at) = self.others.iter().position(is_wanted) {
            return self.others.remove(at);
        }
        self.owned.iter().rposition(is_wanted).map(|at| self.owned.remove(at))
    }
}

/// Moves a partition to a member that has at least two partitions fewer. Prefers the largest share as the source and
/// the smallest as the target. Returns false if no partition can move.
fn move_one(shares: &mut [Share<'_>]) -> bool {
    let mut by_len: Vec<(usize, usize)> = shares.iter().enumerate().map(|(at, share)| (share.len(), at)).collect();
    by_len.sort_unstable();
    for (most, from) in by_len.iter().rev() {
        for (_, to) in by_len.iter().take_while(|(least, _)| least + 2 <= *most) {
            let Ok([from, to]) = shares.get_disjoint_mut([*from, *to]) else { continue };
            if let Some(partition) = from.give_up(&to.topics) {
                to.take(partition);
                return true;
            }
        }
    }
    false
}

/// Removes from the assignment all partitions that another member still owns. The next rebalance assigns them, once
/// that member has given them up (KIP-429).
fn withhold_what_moves(members: &[&Subscriber], given: &mut Given) {
    let mut has: HashMap<&TopicPartition, Vec<&Text>> = HashMap::new();
    members.iter().for_each(|member| {
        member.owned.iter().for_each(|partition| has.entry(partition).or_default().push(&member.id));
    });
    for (id, partitions) in given {
        partitions.retain(|partition| has.get(partition).is_none_or(|owners| owners.iter().all(|owner| *owner == id)));
    }
}

#[cfg(test)]
mod tests;
