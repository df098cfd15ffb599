//! The way of members through a group, one case after another.
