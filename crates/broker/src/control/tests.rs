//! The control plane as its callers see it, on a real database in a temporary folder.
