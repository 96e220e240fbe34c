//! Explores the fencing protocol of volumes on an object store. Everything is in `tests/explore`, so that the planted faults
//! are enabled in tests alone.
