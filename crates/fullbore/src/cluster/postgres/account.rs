//! Chooses the user that runs PostgreSQL if this program runs as root, because PostgreSQL refuses to run as root.

use crate::failure::Failure;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The names of candidates, best first.
const USERS: [&str; 2] = ["postgres", "nobody"];

/// A user of the operating system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
}

impl Account {
    /// Returns the user that must run PostgreSQL, or `None` if the user of this program can run it. `owner` is the uid
    /// and gid that own the existing data.
    ///
    /// # Errors
    /// Fails if root finds no suitable user, or if the data belong to another user.
    pub fn for_data(owner: Option<(u32, u32)>) -> Result<Option<Account>, Failure> {
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        choose(&users, rustix::process::geteuid().as_raw(), owner)
    }

    /// Makes the command run as this user.
    pub fn run(&self, command: &mut Command) {
        // `uid` also removes root's supplementary groups from the process.
        command.uid(self.uid).gid(self.gid);
    }

    /// Returns the first directory above `directory`, from the root on, that the user cannot enter. Returns `None` if
    /// the user can enter all of them.
    pub fn kept_out_of(&self, directory: &Path) -> Option<PathBuf> {
        let way: Vec<&Path> = directory.ancestors().skip(1).collect();
        let closed =
            |place: &&&Path| fs::metadata(place).is_ok_and(|meta| !self.may_enter(meta.mode(), meta.uid(), meta.gid()));
        way.iter().rev().find(closed).map(|place| place.to_path_buf())
    }

    fn may_enter(&self, mode: u32, uid: u32, gid: u32) -> bool {
        let bit = match (self.uid == uid, self.gid == gid) {
            (true, _) => 0o100,
            (false, true) => 0o010,
            (false, false) => 0o001,
        };
        self.uid == 0 || mode & bit != 0
    }
}

/// Chooses the user from `users`, the text of /etc/passwd. `me` is the uid of this program.
fn choose(users: &str, me: u32, owner: Option<(u32, u32)>) -> Result<Option<Account>, Failure> {
    let mut accounts = users.lines().filter_map(account);
    match owner {
        Some((uid, _)) if uid == me && me != 0 => Ok(None),
        None if me != 0 => Ok(None),
        Some((uid, gid)) if me == 0 && uid != 0 => {
            let known = accounts.find(|account| account.uid == uid);
            let name = known.map_or_else(|| uid.to_string(), |account| account.name);
            Ok(Some(Account { name, uid, gid }))
        }
        Some((uid, _)) if me != 0 => {
            let name =
                accounts.find(|account| account.uid == uid).map_or_else(|| uid.to_string(), |account| account.name);
            Err(Failure::new(format!(
                "the PostgreSQL of this cluster belongs to user {name}; run this as root or as {name}"
            )))
        }
        _ => {
            let all: Vec<Account> = accounts.filter(|account| account.uid != 0).collect();
            let found = USERS.iter().find_map(|name| all.iter().find(|account| account.name == *name));
            let none = "PostgreSQL refuses to run as root, and there is no user postgres or nobody; run this as another user, or give \
                        the URL of a PostgreSQL with --control-plane";
            found.cloned().map(Some).ok_or_else(|| Failure::new(none))
        }
    }
}

/// Parses a line of /etc/passwd. Returns None for a malformed line.
fn account(line: &str) -> Option<Account> {
    let mut fields = line.split(':');
    let name = fields.next()?.to_owned();
    let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(Account { name, uid, gid })
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534::/:/bin/false\n\
                         ann:x:1000:1000::/home/ann:/bin/sh\npostgres:x:101:104:,,,:/var/lib/postgresql:/bin/bash\n";

    fn chosen(users: &str, me: u32, owner: Option<u32>) -> Result<Option<String>, String> {
        let found = choose(users, me, owner.map(|uid| (uid, 7)));
        found.map(|account| account.map(|account| account.name)).map_err(|failure| failure.to_string())
    }

    #[test]
    fn root_chooses_another_user_and_other_users_choose_themselves() {
        let named = |name: &str| Ok(Some(name.to_owned()));
        assert_eq!(chosen(USERS, 1000, None), Ok(None));
        assert_eq!(chosen(USERS, 1000, Some(1000)), Ok(None));
        assert_eq!(chosen(USERS, 0, None), named("postgres"));
        assert_eq!(chosen(&USERS.replace("postgres", "ben"), 0, None), named("nobody"));
        assert_eq!(chosen(USERS, 0, Some(1000)), named("ann"), "whose data they are");
        assert_eq!(chosen(USERS, 0, Some(5)), named("5"));
        let reported = chosen(USERS, 1000, Some(101)).expect_err("somebody else's");
        assert!(reported.contains("belongs to user postgres; run this as root or as postgres"), "{reported}");
        let reported = chosen("root:x:0:0", 0, None).expect_err("nobody there");
        assert!(reported.contains("no user postgres or nobody") && !reported.contains('\n'), "{reported}");
    }

    #[test]
    fn the_first_applicable_permission_decides_about_entry() {
        let ann = Account { name: "ann".into(), uid: 1000, gid: 1000 };
        for (mode, uid, gid, may) in [
            (0o755, 0, 0, true),
            (0o700, 0, 0, false),
            (0o710, 0, 1000, true),
            (0o705, 0, 1000, false),
            (0o700, 1000, 0, true),
            (0o077, 1000, 1000, false),
        ] {
            assert_eq!(ann.may_enter(mode, uid, gid), may, "{mode:o}");
        }
        assert_eq!(ann.kept_out_of(Path::new("/a/b")), None);
    }
}
