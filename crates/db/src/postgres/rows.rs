//! Rows of an answer: texts, numbers and flags by column.
//!
//! Invariant: a missing or wrong value is an error and no panic.

use std::fmt::Display;
use std::str::FromStr;

use fullbore_wire::Uuid;

use super::error::damaged;
use crate::StoreError;

/// Row of an answer.
pub type DatabaseRow = tokio_postgres::SimpleQueryRow;
/// The rows of one statement.
pub type Rows = Vec<DatabaseRow>;

/// The text in a column, which has one.
pub fn text(row: &DatabaseRow, column: usize) -> Result<&str, StoreError> {
    optional(row, column)?.ok_or_else(|| damaged(format!("column {column} has nothing")))
}

/// The text in a column, if there is one.
pub fn optional(row: &DatabaseRow, column: usize) -> Result<Option<&str>, StoreError> {
    row.try_get(column).map_err(|error| damaged(error.to_string()))
}

/// The number in a column, which has one.
pub fn number<N: FromStr<Err: Display>>(row: &DatabaseRow, column: usize) -> Result<N, StoreError> {
    let text = text(row, column)?;
    text.parse().map_err(|error| damaged(format!("'{text}' is not a number: {error}")))
}

/// The number in a column, if there is one.
pub fn optional_number<N: FromStr<Err: Display>>(row: &DatabaseRow, column: usize) -> Result<Option<N>, StoreError> {
    match optional(row, column)? {
        Some(_) => number(row, column).map(Some),
        None => Ok(None),
    }
}

/// Reads a column as a flag.
pub fn flag(row: &DatabaseRow, column: usize) -> Result<bool, StoreError> {
    Ok(text(row, column)? == "t")
}

/// Returns the rows of the next statement that has any.
pub fn next(answers: &mut std::vec::IntoIter<Rows>) -> Result<Rows, StoreError> {
    answers.next().ok_or_else(|| damaged("an answer is missing"))
}

/// An id as clients see it.
pub fn id(row: &DatabaseRow, column: usize) -> Result<Uuid, StoreError> {
    let text = text(row, column)?;
    Uuid::parse(text).ok_or_else(|| damaged(format!("'{text}' is not an id")))
}
