//! A directory as an object store.
//!
//! Invariant: when a PUT returns, the object is on the disk.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;

/// Opens the directory, or creates it if it is missing. Each PUT is flushed to the disk.
///
/// # Errors
/// Returns the message of the system if the directory cannot be created or opened.
pub fn open(directory: &Path) -> Result<Arc<dyn ObjectStore>, String> {
    if directory.exists() && !directory.is_dir() {
        return Err("it is not a directory".into());
    }
    make(directory).map_err(|error| error.to_string())?;
    let store = LocalFileSystem::new_with_prefix(directory).map_err(|error| error.to_string())?;
    Ok(Arc::new(store.with_fsync(true)))
}

/// Removes the files that interrupted PUTs of an object have left. `object_store` writes an object to a numbered file
/// beside it, and finally renames this file.
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

fn make(directory: &Path) -> std::io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(directory)?;
    // The entry of the new directory is in its parent directory, so the parent must be flushed.
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}
