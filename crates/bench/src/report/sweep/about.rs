//! The parts of a report besides its figures.

/// The parts of a report besides its figures.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// The heading of the report.
    pub title: String,
    /// The introduction, which may be empty.
    pub lead: String,
    /// The machine, versions, command and date, each with a name and a value.
    pub facts: Vec<(String, String)>,
}
