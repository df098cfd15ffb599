//! The heading, the introduction and the facts of a report.

/// The heading, the introduction and the facts of a report.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// The heading of the report.
    pub title: String,
    /// The introduction, which may be empty.
    pub lead: String,
    /// The machine, versions, command and date, each with a name and a value.
    pub facts: Vec<(String, String)>,
}
