//! Persistent memory.
