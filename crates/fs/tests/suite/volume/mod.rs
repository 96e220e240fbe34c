//! Volumes as their users see them: data, contracts, costs, full and damaged devices.
#![allow(missing_docs, unreachable_pub)]

mod avoidance;
mod closing;
mod common;
mod contracts;
mod costs;
mod data;
mod data_crash;
mod flash;
mod freeze;
mod full;
mod fuzzed;
mod going_down;
mod grow;
mod overwrites;
mod replica;
mod stress;
mod trim;
