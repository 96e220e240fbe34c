//! The journal: behaviour, corners, power cuts, failing and hostile devices, and its model.

mod behaviour;
mod corners;
mod crash;
mod failures;
mod home;
mod hostile;
mod misuse;
mod model;
