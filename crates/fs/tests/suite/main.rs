//! The file system through its calls: names, volumes, and pairs of operations in two streams.

mod namespace;
mod pairs;
mod volume;
