//! The model file system: its properties, and the same calls on Linux.

mod linux;
mod properties;
