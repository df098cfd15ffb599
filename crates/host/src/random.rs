//! Random ids of topics, directories and processes.

use fullbore_wire::Uuid;

/// Returns a random (version 4) UUID. Its text never starts with a dash, because command line tools would take such a
/// text for an option.
pub fn random_id() -> Uuid {
    loop {
        let id = Uuid(uuid::Uuid::new_v4().into_bytes());
        if !id.to_string().starts_with('-') {
            return id;
        }
    }
}
