//! What a report says besides figures.

/// What a report says besides figures.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Its heading.
    pub title: String,
    /// What its reader should know first; may be empty.
    pub lead: String,
    /// Machine, versions, command, date: a name and a value each.
    pub facts: Vec<(String, String)>,
}
