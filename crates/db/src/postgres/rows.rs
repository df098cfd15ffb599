//! Reads texts, numbers and flags from the rows of a response.
//!
//! Invariant: a missing or invalid value causes an error, never a panic.

use std::fmt::Display;
use std::str::FromStr;

use fullbore_wire::Uuid;

use super::error::damaged;
use crate::StoreError;

/// A row of a response.
pub type DatabaseRow = tokio_postgres::SimpleQueryRow;
/// The rows that one statement returned.
pub type Rows = Vec<DatabaseRow>;

/// Returns the text in a column, or an error if it is null.
pub fn text(row: &DatabaseRow, column: usize) -> Result<&str, StoreError> {
    optional(row, column)?.ok_or_else(|| damaged(format!("column {column} of a row is null")))
}

/// Returns the text in a column, or `None` if it is null.
pub fn optional(row: &DatabaseRow, column: usize) -> Result<Option<&str>, StoreError> {
    row.try_get(column).map_err(|error| damaged(error.to_string()))
}

/// Returns the number in a column, or an error if it is null.
pub fn number<N: FromStr<Err: Display>>(row: &DatabaseRow, column: usize) -> Result<N, StoreError> {
    let text = text(row, column)?;
    text.parse().map_err(|error| damaged(format!("'{text}' is not a number: {error}")))
}

/// Returns the number in a column, or `None` if it is null.
pub fn optional_number<N: FromStr<Err: Display>>(row: &DatabaseRow, column: usize) -> Result<Option<N>, StoreError> {
    match optional(row, column)? {
        Some(_) => number(row, column).map(Some),
        None => Ok(None),
    }
}

/// Returns the flag in a column, or an error if it is null.
pub fn flag(row: &DatabaseRow, column: usize) -> Result<bool, StoreError> {
    Ok(text(row, column)? == "t")
}

/// Returns the rows of the next statement, or an error if there is none. Statements without columns, such as BEGIN or
/// UPDATE, have no entry. A SELECT that finds no row has an empty entry.
pub fn next(answers: &mut std::vec::IntoIter<Rows>) -> Result<Rows, StoreError> {
    answers.next().ok_or_else(|| damaged("the server has not answered each of the statements"))
}

/// Returns the id in a column.
pub fn id(row: &DatabaseRow, column: usize) -> Result<Uuid, StoreError> {
    let text = text(row, column)?;
    Uuid::parse(text).ok_or_else(|| damaged(format!("'{text}' is not an id")))
}
