//! The promises of a disk: hard cases by the project's numbers, and damage of every kind.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;
mod corners;
mod damage;
mod ends;
mod formats;
mod lost;
mod rot;
