//! A folder as an object store.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;

/// The folder, which is made if it is not there. What is put is on the disk then.
///
/// # Errors
/// What the system says.
pub fn open(folder: &Path) -> Result<Arc<dyn ObjectStore>, String> {
    if folder.exists() && !folder.is_dir() {
        return Err("it is not a folder".into());
    }
    make(folder).map_err(|error| error.to_string())?;
    let store = LocalFileSystem::new_with_prefix(folder).map_err(|error| error.to_string())?;
    Ok(Arc::new(store.with_fsync(true)))
}

/// Removes what was begun to be put of an object and has not its name yet: `object_store` writes to files beside it,
/// which have numbers.
pub fn remove_unfinished(object: &Path) {
    let mut number = 1;
    let unfinished = |number: u32| {
        let mut file = object.as_os_str().to_owned();
        file.push(format!("#{number}"));
        file
    };
    while fs::remove_file(unfinished(number)).is_ok() {
        number += 1;
    }
}

fn make(folder: &Path) -> std::io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(folder)?;
    // It is an entry of another one.
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}
