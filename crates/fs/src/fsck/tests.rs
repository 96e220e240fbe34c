//! Tests of the checker: sound volumes are clean, every kind of damage is found and put
//! right, and nothing that a medium can hold makes check, repair or mount panic or hang.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::semicolon_if_nothing_returned)] // one-line closures that rustfmt puts into braces

mod busy;
mod fields;
mod fuzz;
mod image;
mod orphans;
mod plant;
mod repairs;
mod sound;
