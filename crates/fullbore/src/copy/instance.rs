//! Chooses the default transactional id of a copier. A copier gets the same id after a restart, and copiers that run at
//! the same time get different ids.
//!
//! If a copier restarts with the same id, it ends the transaction that it has left open. Each running copier of a group
//! occupies a slot on its machine. A slot is a socket with an abstract name, which the system frees when the process
//! dies. Invariant: two copiers that run in the same network namespace never have the same default id.

use crate::failure::Failure;

/// Maximum number of copiers of a group on one machine.
const SLOTS_MAX: usize = 256;

/// A transactional id, and the slot that reserves it until this value is dropped.
pub(super) struct InstanceId {
    /// The transactional id.
    pub(super) transactional_id: String,
    _slot: Option<slot::Slot>,
}

impl InstanceId {
    /// Returns `id` if it is given. Otherwise builds an id from the group and its static member. Without a static
    /// member, builds it from the group, the machine and a free slot.
    ///
    /// # Errors
    /// Returns a sentence for the user if no slot is free.
    pub(super) fn choose(id: Option<&str>, group: &str, member: Option<&str>) -> Result<Self, Failure> {
        let of = |transactional_id: String| InstanceId { transactional_id, _slot: None };
        match (id, member) {
            (Some(id), _) => Ok(of(id.to_owned())),
            (None, Some(member)) => Ok(of(format!("fullbore-copy-{group}-{member}"))),
            (None, None) => {
                let found = (0..SLOTS_MAX).find_map(|number| Some((number, slot::take(group, number)?)));
                let (number, slot) = found.ok_or_else(|| {
                    Failure::new(format!(
                        "cannot choose a transactional id: {SLOTS_MAX} copiers of group '{group}' run on this machine; \
                         name one with --transactional-id"
                    ))
                })?;
                let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
                let transactional_id = format!("fullbore-copy-{group}-{host}-{number}");
                Ok(InstanceId { transactional_id, _slot: Some(slot) })
            }
        }
    }
}

#[cfg(target_os = "linux")]
mod slot {
    use std::hash::{DefaultHasher, Hash, Hasher};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    pub(super) type Slot = UnixListener;

    /// Occupies slot `number`. Returns `None` if another process has this slot.
    pub(super) fn take(group: &str, number: usize) -> Option<Slot> {
        // The name has a hash instead of the group, because the name of a socket has at most 107 bytes.
        let mut hasher = DefaultHasher::new();
        group.hash(&mut hasher);
        let name = format!("fullbore-copy-{:016x}-{number}", hasher.finish());
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).ok()?).ok()
    }
}

#[cfg(not(target_os = "linux"))]
mod slot {
    pub(super) type Slot = ();

    /// Occupies slot `number` on a system without abstract names. The pid determines the only slot that a process can
    /// have. Returns `None` for any other slot.
    pub(super) fn take(_: &str, number: usize) -> Option<Slot> {
        (number == std::process::id() as usize % super::SLOTS_MAX).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(id: Option<&str>, member: Option<&str>) -> InstanceId {
        InstanceId::choose(id, "instance-tests", member).expect("an id")
    }

    #[test]
    fn a_given_id_precedes_that_of_the_member_and_that_of_a_slot() {
        assert_eq!(choose(Some("x"), Some("m")).transactional_id, "x");
        assert_eq!(choose(None, Some("m")).transactional_id, "fullbore-copy-instance-tests-m");
        assert!(choose(None, None).transactional_id.starts_with("fullbore-copy-instance-tests-"));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn concurrent_copiers_have_different_ids_and_a_restarted_one_its_former_id() {
        let first = InstanceId::choose(None, "instance-tests-2", None).expect("an id");
        let second = InstanceId::choose(None, "instance-tests-2", None).expect("an id");
        assert_ne!(first.transactional_id, second.transactional_id);
        let id = first.transactional_id.clone();
        drop(first);
        let again = InstanceId::choose(None, "instance-tests-2", None).expect("an id");
        assert_eq!(again.transactional_id, id);
    }
}
