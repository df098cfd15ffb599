//! Writes the results of a sweep as files and text: CSV and JSON for programs, HTML and tables for people.
//!
//! * [`csv`], [`json`]: every measurement, and every point with its spread.
//! * [`html`]: one page that needs nothing else. Its curves are in [`chart`].
//! * [`text`]: the output on a terminal.
//!
//! Invariant: [`number`] writes a point's numbers everywhere, so that page, text and files agree digit by digit.

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
use std::io;
use std::path::Path;

/// The names of the files that [`write_files`] writes.
pub const FILES: [&str; 4] = ["runs.csv", "points.csv", "sweep.json", "report.html"];

/// Writes every file into a directory.
///
/// # Errors
/// Returns the system's error and the file's name if a file cannot be written.
pub fn write_files(directory: &Path, about: &About, results: &Results) -> io::Result<()> {
    let contents =
        [csv::runs(results), csv::points(results), json::document(about, results), html::page(about, results)];
    for (name, content) in FILES.iter().zip(contents) {
        let path = directory.join(name);
        std::fs::write(&path, content)
            .map_err(|error| io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display())))?;
    }
    Ok(())
}
