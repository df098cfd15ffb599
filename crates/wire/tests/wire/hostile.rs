//! Bytes that strangers send.
