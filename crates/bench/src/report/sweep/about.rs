//! Parts of a report besides its figures.

/// Parts of a report besides its figures.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Heading of the report.
    pub title: String,
    /// Introduction; may be empty.
    pub lead: String,
    /// Machine, versions, command and date, each a name and a value.
    pub facts: Vec<(String, String)>,
}
