//! Determines the form of printed records from a format, or from the flags and properties of kafka-console-consumer.sh.

use super::args::{Consume, Format};
use super::format::{FormatPart, Style};
use crate::failure::Failure;
use crate::pipe::escapes;

impl Consume {
    /// Returns the form of printed records.
    pub(super) fn style(&self) -> Result<Style, Failure> {
        if self.json {
            return Ok(Style::Json);
        }
        let mut layout = ConsoleLayout {
            timestamp: self.print_timestamp,
            partition: self.print_partition,
            offset: self.print_offset,
            headers: self.print_headers,
            key: self.print_key || self.key_separator.is_some(),
            value: true,
            separator: self.key_separator.clone().unwrap_or_else(|| b"\t".to_vec()),
            end: self.delimiter.clone().unwrap_or_else(|| b"\n".to_vec()),
            between_headers: b",".to_vec(),
            null: if self.null { b"NULL".to_vec() } else { Vec::new() },
        };
        for (key, value) in &self.formatter_property {
            layout.set(key, value)?;
        }
        let null = layout.null.clone();
        Ok(match &self.format {
            Some(Format(pieces)) => Style::Pieces { pieces: pieces.clone(), null },
            None => Style::Pieces { pieces: layout.pieces(), null },
        })
    }
}

/// The columns of kafka-console-consumer.sh, in the order in which it prints them.
struct ConsoleLayout {
    timestamp: bool,
    partition: bool,
    offset: bool,
    headers: bool,
    key: bool,
    value: bool,
    separator: Vec<u8>,
    end: Vec<u8>,
    between_headers: Vec<u8>,
    null: Vec<u8>,
}

impl ConsoleLayout {
    /// Sets a property of the formatter by its name in Kafka.
    fn set(&mut self, key: &str, value: &str) -> Result<(), Failure> {
        let wrong = |allowed: &str| Failure::new(format!("{key}={value}: {allowed}"));
        let boolean = || value.parse::<bool>().map_err(|_| wrong("must be true or false"));
        let bytes = || escapes::bytes(value).map_err(|allowed| wrong(&allowed));
        match key {
            "print.timestamp" => self.timestamp = boolean()?,
            "print.partition" => self.partition = boolean()?,
            "print.offset" => self.offset = boolean()?,
            "print.headers" => self.headers = boolean()?,
            "print.key" => self.key = boolean()?,
            "print.value" => self.value = boolean()?,
            "key.separator" => self.separator = bytes()?,
            "line.separator" => self.end = bytes()?,
            "headers.separator" => self.between_headers = bytes()?,
            "null.literal" => self.null = bytes()?,
            _ => {
                return Err(wrong(
                    "must be one of print.key, print.value, print.headers, print.timestamp, print.partition, \
                     print.offset, key.separator, line.separator, headers.separator, null.literal",
                ));
            }
        }
        Ok(())
    }

    fn pieces(self) -> Vec<FormatPart> {
        let literal = |text: &str| FormatPart::Literal(text.as_bytes().to_vec());
        let columns: [(bool, Vec<FormatPart>); 6] = [
            (self.timestamp, vec![FormatPart::NamedTimestamp]),
            (self.partition, vec![literal("Partition:"), FormatPart::Partition]),
            (self.offset, vec![literal("Offset:"), FormatPart::Offset]),
            (self.headers, vec![FormatPart::NamedHeaders(self.between_headers)]),
            (self.key, vec![FormatPart::Key]),
            (self.value, vec![FormatPart::Value]),
        ];
        let shown: Vec<Vec<FormatPart>> =
            columns.into_iter().filter(|(shown, _)| *shown).map(|(_, column)| column).collect();
        let mut pieces = shown.join(&FormatPart::Literal(self.separator));
        pieces.push(FormatPart::Literal(self.end));
        pieces
    }
}
