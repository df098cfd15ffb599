//! Writes the results of a sweep as files and text: CSV and JSON for programs, HTML and tables for people.
//!
//! * [`csv`], [`json`]: every measurement, and every point with its spread.
//! * [`html`]: one self-contained page. [`chart`] draws its curves.
//! * [`text`]: the output on a terminal.
//!
//! Invariant: page, text and files format the numbers of a point with [`number`], so that they agree digit by digit.

mod about;
pub mod chart;
pub mod csv;
mod escape;
mod finding;
pub mod html;
pub mod json;
mod numbers;
pub mod text;
mod tradeoff;

pub use about::About;
pub use numbers::{grouped, number, ratio};

use crate::sweep::Results;
use fullbore_host::files::replace_unsynced;
use std::io;
use std::path::Path;

/// The names of the files that [`write_files`] writes.
pub const FILES: [&str; 4] = ["runs.csv", "points.csv", "sweep.json", "report.html"];

/// Writes every file into a directory. If a file cannot be written, removes those that were written before it.
///
/// # Errors
/// Returns the system's error and the file's name if a file cannot be written.
pub fn write_files(directory: &Path, about: &About, results: &Results) -> io::Result<()> {
    let contents =
        [csv::runs(results), csv::points(results), json::document(about, results), html::page(about, results)];
    for (at, content) in contents.into_iter().enumerate() {
        let path = directory.join(FILES[at]);
        if let Err(error) = replace_unsynced(&path, content.as_bytes()) {
            // If a file cannot be removed, the next sweep reports that it exists.
            FILES[..at].iter().for_each(|name| drop(std::fs::remove_file(directory.join(name))));
            return Err(io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display())));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::sample_results;

    #[test]
    fn file_cannot_be_written_none_is_left() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(directory.path().join("sweep.json")).expect("made");
        let about = About { title: "title".to_owned(), lead: String::new(), facts: Vec::new() };
        let error =
            write_files(directory.path(), &about, &sample_results()).expect_err("it is a directory").to_string();
        assert!(error.starts_with("cannot write ") && error.contains("/sweep.json: "), "{error}");
        let left = std::fs::read_dir(directory.path()).expect("readable").flatten().map(|entry| entry.file_name());
        assert_eq!(left.collect::<Vec<_>>(), ["sweep.json"]);
    }
}
