//! The encodings of bytes as text that `produce` and `consume` share.

pub mod base64;
pub mod escapes;
pub mod json;
