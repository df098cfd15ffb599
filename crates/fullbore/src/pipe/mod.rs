//! Text forms of bytes that `produce` and `consume` share.

pub mod base64;
pub mod escapes;
pub mod json;
