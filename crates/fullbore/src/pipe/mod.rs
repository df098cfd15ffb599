//! Text forms of bytes that both `produce` and `consume` use.

pub mod base64;
pub mod escapes;
pub mod json;
