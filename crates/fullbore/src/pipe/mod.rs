//! Text forms of bytes, which `produce` and `consume` share.

pub mod base64;
pub mod escapes;
pub mod json;
