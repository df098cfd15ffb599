//! Assignors of Kafka's consumers, which the leader of a classic group runs. Pure functions, without racks.
//!
//! Range and roundrobin assign exactly as Java's, so that a change of leader moves nothing. Sticky balances as Java's
//! but may choose other partitions. Invariant: every partition of a subscribed topic has exactly one owner, who
//! subscribes to it. Under cooperative-sticky, a partition on its way from one member to another has no owner for one
//! rebalance.

use fullbore_wire::Text;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

/// Partition by topic name.
pub type TopicPartition = (Text, i32);

/// Member of a group with its subscription.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscriber {
    /// The member id.
    pub id: Text,
    /// group.instance.id.
    pub instance: Option<Text>,
    /// Subscribed topics.
    pub topics: Vec<Text>,
    /// Partitions that the member owns.
    pub owned: Vec<TopicPartition>,
    /// Generation in which it got them, or -1.
    pub generation: i32,
}

/// Assignor of partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assignor {
    /// Ranges of each topic's partitions.
    Range,
    /// Partitions one after another over all topics.
    RoundRobin,
    /// Balanced shares, in which members keep their partitions.
    CooperativeSticky,
}

impl Assignor {
    /// All assignors.
    pub const ALL: [Assignor; 3] = [Assignor::Range, Assignor::RoundRobin, Assignor::CooperativeSticky];

    /// Returns the name in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Assignor::Range => "range",
            Assignor::RoundRobin => "roundrobin",
            Assignor::CooperativeSticky => "cooperative-sticky",
        }
    }

    /// Returns the assignor with this name, or with this name of a class in Java.
    pub fn named(name: &str) -> Option<Assignor> {
        let short = name.rsplit('.').next().unwrap_or(name);
        let class = |assignor: Assignor| match assignor {
            Assignor::Range => "RangeAssignor",
            Assignor::RoundRobin => "RoundRobinAssignor",
            Assignor::CooperativeSticky => "CooperativeStickyAssignor",
        };
        Assignor::ALL.into_iter().find(|assignor| assignor.name() == name || class(*assignor) == short)
    }

    /// Returns the partitions of each member; `counts` has the number of partitions of each topic that exists.
    pub fn assign(self, members: &[Subscriber], counts: &BTreeMap<Text, i32>) -> BTreeMap<Text, Vec<TopicPartition>> {
        let mut sorted: Vec<&Subscriber> = members.iter().collect();
        // Static members come first: their order does not depend on the member id, which changes at each start.
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

/// Returns the member that may keep each partition: its owner by the newest generation. Two such owners lose it both.
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
    // Partitions without an owner go to the members with the least, after all owned ones. In between they could push a
    // member past its share, and another member's owned partition might be moved instead.
    for (topic, count) in counts {
        let wanting: Vec<usize> = (0..shares.len()).filter(|at| shares[*at].topics.contains(topic)).collect();
        for partition in (0..*count).map(|partition| (topic.clone(), partition)).filter(|of| !kept.contains_key(of)) {
            let least = wanting.iter().min_by_key(|at| shares[**at].len());
            least.into_iter().for_each(|at| shares[*at].take(partition.clone()));
        }
    }
    // Terminates: each move brings two members' counts closer.
    while move_one(&mut shares) {}
    for Share { member, others, owned, .. } in shares {
        given.entry(member.id.clone()).or_default().extend(owned.into_iter().chain(others));
    }
}

/// Partitions of a member during the balancing.
struct Share<'a> {
    member: &'a Subscriber,
    topics: HashSet<&'a Text>,
    owns: HashSet<&'a TopicPartition>,
    /// Owned partitions that it keeps; moved after `others`, the last one first.
    owned: Vec<TopicPartition>,
    /// New partitions; moved first, from the front.
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

    /// Removes a partition of one of these topics, which another member gets.
    fn give_up(&mut self, topics: &HashSet<&Text>) -> Option<TopicPartition> {
        let is_wanted = |(topic, _): &TopicPartition| topics.contains(topic);
        if let Some(at) = self.others.iter().position(is_wanted) {
            return self.others.remove(at);
        }
        self.owned.iter().rposition(is_wanted).map(|at| self.owned.remove(at))
    }
}

/// Moves a partition from one member to another that has at least two fewer, if possible from the longest share to the
/// shortest. Returns true if it moved one.
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

/// Removes partitions that another member still owns: they are assigned once it has given them up (KIP-429).
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
