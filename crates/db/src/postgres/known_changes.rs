//! The committed changes that this process knows: the numbers of changes to the index of diskless topics, and the
//! newest version of the metadata. A database that lacks any of them is an older copy or another database.
//!
//! All connections of a process share this knowledge, so that none of them changes a database that lacks commits which
//! another connection has seen. A commit to an older copy would be lost once the newest database is restored, and a
//! broker that has seen this commit would then refuse the newest database.
//!
//! Invariant: a known number was committed. A caller reads the known numbers before it queries the database, because
//! numbers that are recorded later may include commits that the query does not see.

use std::collections::BTreeMap;
use std::fmt;

use parking_lot::Mutex;

use super::rows::{Rows, number};
use super::schema::CHANGES_SKIPPED;
use crate::{StoreError, Version};

/// The number of changes that each broker has committed, by broker id.
pub type ChangeCounts = BTreeMap<i32, i64>;

/// A query for the number of changes that each broker has committed.
pub const CHANGE_COUNTS: &str = "SELECT broker_id, counter FROM fullbore.diskless_brokers ORDER BY broker_id";

/// A broker whose committed changes are not all in an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lacking {
    pub broker_id: i32,
    pub known: i64,
    pub found: i64,
}

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lacking { broker_id, known, found } = self;
        write!(f, "it has {found} of the {known} committed changes of broker {broker_id}")
    }
}

/// Reads the rows of [`CHANGE_COUNTS`].
///
/// # Errors
/// Returns [`StoreError::Damaged`] if a row is invalid.
pub fn change_counts(rows: &Rows) -> Result<ChangeCounts, StoreError> {
    rows.iter().map(|row| Ok((number(row, 0)?, number(row, 1)?))).collect()
}

/// Returns the first broker that has fewer changes in `found` than in `known`, or `None` if there is none.
pub fn lacking(known: &ChangeCounts, found: &ChangeCounts) -> Option<Lacking> {
    known.iter().find_map(|(&broker_id, &known)| {
        let found = found.get(&broker_id).copied().unwrap_or(0);
        (found < known).then_some(Lacking { broker_id, known, found })
    })
}

/// Returns a query that shows if a database has the version `known` of the metadata. [`check_version`] reads the
/// answer.
pub fn version_query(known: Option<Version>) -> String {
    let number = known.map_or(0, |known| known.number);
    format!("SELECT version, mark FROM fullbore.versions WHERE version >= {number} ORDER BY version LIMIT 1")
}

/// Reads the answer to [`version_query`].
///
/// # Errors
/// Returns [`StoreError::WentBack`] if the database lacks the version, and [`StoreError::Damaged`] if the row is
/// invalid.
pub fn check_version(known: Option<Version>, rows: &Rows) -> Result<(), StoreError> {
    let Some(known) = known else { return Ok(()) };
    let Some(row) = rows.first() else { return Err(StoreError::WentBack(known.number)) };
    let found = Version { number: number(row, 0)?, nonce: number::<i64>(row, 1)?.cast_unsigned() };
    // The database no longer lists a version that is much older than the newest one. An accepted copy skips versions.
    match found == known || found.number > known.number {
        true => Ok(()),
        false => Err(StoreError::WentBack(known.number)),
    }
}

/// Returns true if `found` shows that an older copy was accepted after the counts in `known` were read.
pub fn was_copy_accepted(known: &ChangeCounts, found: &ChangeCounts) -> bool {
    found.iter().any(|(broker_id, found)| {
        let known = known.get(broker_id).copied().unwrap_or(0);
        // Accepting a copy raises each count in it by `CHANGES_SKIPPED`. The copy may lack some changes that were
        // counted here, and the difference is then smaller. However, no copy lacks half of `CHANGES_SKIPPED` changes.
        found.saturating_sub(known) > CHANGES_SKIPPED / 2
    })
}

/// The largest known number of each broker, and the newest known version of the metadata.
#[derive(Debug, Default)]
pub struct KnownChanges {
    counts: Mutex<ChangeCounts>,
    version: Mutex<Option<Version>>,
}

impl KnownChanges {
    /// Returns the current numbers.
    pub fn counts(&self) -> ChangeCounts {
        self.counts.lock().clone()
    }

    /// Returns the newest known version, or `None` before the first one was read.
    pub fn version(&self) -> Option<Version> {
        *self.version.lock()
    }

    /// Records a committed version of the metadata.
    pub fn raise_version(&self, committed: Version) {
        let mut version = self.version.lock();
        if version.is_none_or(|known| known.number < committed.number) {
            *version = Some(committed);
        }
    }

    /// Raises the numbers to those in `found`.
    pub fn raise(&self, found: &ChangeCounts) {
        let mut counts = self.counts.lock();
        for (&broker_id, &found) in found {
            let known = counts.entry(broker_id).or_insert(0);
            *known = found.max(*known);
        }
    }

    /// Compares the numbers `found` in a database with `known`, which the caller has read before its query. Then raises
    /// the known numbers to those in `found`. After an accepted copy, forgets the former numbers, since the copy may
    /// lack all changes of a broker; the version of the metadata shows the acceptance.
    ///
    /// # Errors
    /// Returns [`StoreError::LacksChanges`] if the database lacks a change.
    pub fn check(&self, known: &ChangeCounts, found: &ChangeCounts) -> Result<(), StoreError> {
        if was_copy_accepted(known, found) {
            self.counts.lock().clone_from(found);
            return Ok(());
        }
        if let Some(lacks) = lacking(known, found) {
            return Err(StoreError::LacksChanges(lacks));
        }
        self.raise(found);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_has_fewer_changes_of_a_broker_or_none_it_lacks_them() {
        let known = ChangeCounts::from([(1, 5), (2, 7)]);
        assert_eq!(lacking(&known, &ChangeCounts::from([(1, 5), (2, 9), (3, 1)])), None);
        let found = ChangeCounts::from([(1, 5), (2, 6)]);
        assert_eq!(lacking(&known, &found), Some(Lacking { broker_id: 2, known: 7, found: 6 }));
        assert_eq!(lacking(&known, &ChangeCounts::new()), Some(Lacking { broker_id: 1, known: 5, found: 0 }));
    }

    #[test]
    fn older_copy_is_found_it_is_refused_until_all_known_changes_are_back() {
        let changes = KnownChanges::default();
        let check = |found: &[(i32, i64)]| {
            let found = found.iter().copied().collect();
            changes.check(&changes.counts(), &found)
        };
        assert_eq!(check(&[(1, 5), (2, 7)]), Ok(()));
        let lacks = Lacking { broker_id: 2, known: 7, found: 6 };
        assert_eq!(check(&[(1, 9), (2, 6)]), Err(StoreError::LacksChanges(lacks)));
        assert_eq!(changes.counts(), ChangeCounts::from([(1, 5), (2, 7)]), "the copy's own numbers do not count");
        changes.raise(&ChangeCounts::from([(1, 4), (2, 8)]));
        assert!(check(&[(1, 5), (2, 7)]).is_err(), "another connection has seen the eighth");
        assert_eq!(check(&[(1, 5), (2, 8), (3, 1)]), Ok(()));
        assert!(check(&[(1, 5), (2, 8)]).is_err());
    }

    /// The metadata in an accepted copy name another process of each broker, so a process that was frozen must read
    /// them to end.
    #[test]
    fn older_copy_was_accepted_the_former_numbers_are_forgotten() {
        let changes = KnownChanges::default();
        changes.raise(&ChangeCounts::from([(1, 5), (4, 3)]));
        let accepted = ChangeCounts::from([(1, 4 + CHANGES_SKIPPED)]);
        assert_eq!(changes.check(&changes.counts(), &accepted), Ok(()));
        assert_eq!(changes.counts(), accepted);
    }
}
