//! What `produce` and `consume` share: the forms in which bytes stand in text.

pub mod base64;
pub mod escapes;
pub mod json;
