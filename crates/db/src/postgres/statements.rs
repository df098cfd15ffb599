//! Builds a text of SQL statements, in which values are written as literals.
//!
//! Invariant: only this module writes literals. They are safe only if `standard_conforming_strings` is on, which every
//! session ensures.

use std::fmt::{Display, Write};

use fullbore_wire::{Text, Uuid};

/// A list of statements. Each ends with a semicolon.
#[derive(Default)]
pub struct Statements(String);

impl Statements {
    /// Returns the statements as one text.
    pub fn text(self) -> String {
        self.0
    }

    /// Adds a statement, and replaces each `?` in it by the next one of the `values`.
    pub fn add(&mut self, statement: &str, values: &[&dyn Value]) {
        self.fill(statement, values);
        self.0.push_str(";\n");
    }

    /// Calls `add` for each item, with a comma between two items.
    pub fn list<T>(&mut self, items: impl IntoIterator<Item = T>, add: impl Fn(&mut Self, T)) {
        for (at, item) in items.into_iter().enumerate() {
            if at > 0 {
                self.0.push(',');
            }
            add(self, item);
        }
    }

    /// Adds a part of a statement, and replaces each `?` in it by the next one of the `values`.
    pub fn fill(&mut self, text: &str, values: &[&dyn Value]) {
        let mut parts = text.split('?');
        self.0.push_str(parts.next().unwrap_or_default());
        let mut values = values.iter();
        for part in parts {
            values.next().expect("a value for each ?").put(&mut self.0);
            self.0.push_str(part);
        }
        assert!(values.next().is_none(), "a ? for each value");
    }
}

/// A value that can be written into a statement.
pub trait Value {
    fn put(&self, statement: &mut String);
}

macro_rules! as_displayed {
    ($($number:ty),*) => {$(
        impl Value for $number {
            fn put(&self, statement: &mut String) {
                // Write the number in parentheses, because two minus signs in a row would begin a comment.
                let _ = write!(statement, "({self})");
            }
        }
    )*};
}
as_displayed!(i32, i64, u16, usize, bool);

impl Value for Option<i32> {
    fn put(&self, statement: &mut String) {
        match self {
            Some(number) => number.put(statement),
            None => statement.push_str("null"),
        }
    }
}

impl Value for Uuid {
    fn put(&self, statement: &mut String) {
        quote(statement, &self.to_string());
    }
}

impl Value for Vec<i32> {
    fn put(&self, statement: &mut String) {
        let ids: Vec<String> = self.iter().map(i32::to_string).collect();
        let _ = write!(statement, "'{{{}}}'", ids.join(","));
    }
}

impl Value for Vec<Option<i32>> {
    fn put(&self, statement: &mut String) {
        let ids: Vec<String> = self.iter().map(|id| id.map_or("null".to_owned(), |id| id.to_string())).collect();
        let _ = write!(statement, "'{{{}}}'", ids.join(","));
    }
}

/// Text from this program, or text that was checked. It must not contain the NUL character.
impl Value for String {
    fn put(&self, statement: &mut String) {
        quote(statement, self);
    }
}

/// Text from a client, which may contain any character.
pub struct Typed<'a>(pub &'a str);

impl Value for Typed<'_> {
    fn put(&self, statement: &mut String) {
        match self.0.contains(['\\', '\0']) {
            true => quote(statement, &self.0.replace('\\', "\\\\").replace('\0', "\\0")),
            false => quote(statement, self.0),
        }
    }
}

/// Returns a client's original text, without the escapes that [`Typed`] has added for the database.
pub fn as_typed(stored: &str) -> String {
    if !stored.contains('\\') {
        return stored.to_owned();
    }
    let mut typed = String::with_capacity(stored.len());
    let mut characters = stored.chars();
    while let Some(character) = characters.next() {
        typed.push(match character {
            '\\' if characters.next() == Some('0') => '\0',
            other => other,
        });
    }
    typed
}

impl Value for Option<&Text> {
    fn put(&self, statement: &mut String) {
        match self {
            Some(text) => Typed(text.as_str()).put(statement),
            None => statement.push_str("null"),
        }
    }
}

fn quote(statement: &mut String, text: &str) {
    statement.push('\'');
    statement.push_str(&text.replace('\'', "''"));
    statement.push('\'');
}

/// Returns the text as a literal.
pub fn literal(text: &impl Display) -> String {
    let mut literal = String::new();
    Typed(&text.to_string()).put(&mut literal);
    literal
}
