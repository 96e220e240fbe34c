//! The translation layer: its device, whole disks, space, mutants, threads.

mod device;
mod disk;
mod mutants;
mod space;
mod stress;
