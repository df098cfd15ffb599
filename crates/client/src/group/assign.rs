//! Assignors of Kafka's consumers, as the leader of a group under the classic protocol runs
//! them. Pure.
//!
//! Range and roundrobin give what Java's give, partition by partition, so that a change of leader moves nothing; sticky
//! balances as Java's does but may choose other partitions. Not here: racks. Invariant: every partition of a topic that
//! somebody subscribes to has exactly one owner, who subscribes to it - but under cooperative-sticky a partition on its
//! way from one member to another has none for one rebalance.

use fullbore_wire::Text;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

/// A partition by name.
pub type TopicPartition = (Text, i32);

/// A member as its subscription tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscriber {
    /// The member id.
    pub id: Text,
    /// group.instance.id.
    pub instance: Option<Text>,
    /// The topics it wants.
    pub topics: Vec<Text>,
    /// Partitions that the member has.
    pub owned: Vec<TopicPartition>,
    /// The generation in which it got that, or -1.
    pub generation: i32,
}

/// How partitions are given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assignor {
    /// Each topic in ranges.
    Range,
    /// Partitions one after another over all topics.
    RoundRobin,
    /// Balanced, and with what everybody has already.
    CooperativeSticky,
}

impl Assignor {
    /// The assignors there are.
    pub const ALL: [Assignor; 3] = [Assignor::Range, Assignor::RoundRobin, Assignor::CooperativeSticky];

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Assignor::Range => "range",
            Assignor::RoundRobin => "roundrobin",
            Assignor::CooperativeSticky => "cooperative-sticky",
        }
    }

    /// By its name, or the name of its class in Java.
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
        // Static members first: they come back under another member id.
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

/// Returns the member that may keep each partition: the one that has it by the newest generation; none if two have.
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
    // What nobody keeps fills up those with least. It comes after all that is kept: given in between, it would push a
    // member past its share, and a partition that somebody keeps might be moved in its place.
    for (topic, count) in counts {
        let wanting: Vec<usize> = (0..shares.len()).filter(|at| shares[*at].topics.contains(topic)).collect();
        for partition in (0..*count).map(|partition| (topic.clone(), partition)).filter(|of| !kept.contains_key(of)) {
            let least = wanting.iter().min_by_key(|at| shares[**at].len());
            least.into_iter().for_each(|at| shares[*at].take(partition.clone()));
        }
    }
    // Each move brings two members' counts closer, so that it ends.
    while move_one(&mut shares) {}
    for Share { member, others, owned, .. } in shares {
        given.entry(member.id.clone()).or_default().extend(owned.into_iter().chain(others));
    }
}

/// Partitions of a member while they are balanced.
struct Share<'a> {
    member: &'a Subscriber,
    topics: HashSet<&'a Text>,
    owns: HashSet<&'a TopicPartition>,
    /// Partitions that it keeps; the last goes first.
    owned: Vec<TopicPartition>,
    /// New partitions, which go before those; the first goes first.
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

    /// Lets go of a partition of these topics.
    fn give_up(&mut self, topics: &HashSet<&Text>) -> Option<TopicPartition> {
        let is_wanted = |(topic, _): &TopicPartition| topics.contains(topic);
        if let Some(at) = self.others.iter().position(is_wanted) {
            return self.others.remove(at);
        }
        self.owned.iter().rposition(is_wanted).map(|at| self.owned.remove(at))
    }
}

/// Moves a partition from one member to another with at least two fewer, from who has most to who has least if
/// possible. Whether there was one.
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

/// A partition is given only once the member that has it has let it go (KIP-429).
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
