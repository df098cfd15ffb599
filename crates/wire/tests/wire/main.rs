//! The protocol tests: round trips, another implementation as the oracle, hostile bytes, the generated documentation.

mod docs;
mod hostile;
mod oracle;
mod recode;
mod round_trip;
mod schema;
