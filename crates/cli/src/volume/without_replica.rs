//! Following another machine in a program without the feature `store`: nothing can be followed.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use steadfast_fs::{Fs, MountOptions};
use steadfast_vfs::Replica;

use super::store::Follower;
use crate::failure::Failure;

/// A volume that another machine writes. There is none.
pub(crate) struct Following {
    pub(crate) replica: Arc<Replica>,
    never: Infallible,
}

impl Following {
    pub(crate) fn start(
        _first: Arc<Fs>,
        follower: Follower,
        _interval: Duration,
        _options: MountOptions,
        _tell: impl Fn(&str) + Send + 'static,
    ) -> Result<Following, Failure> {
        match follower {}
    }

    pub(crate) fn newest(&self) -> Arc<Fs> {
        match self.never {}
    }

    pub(crate) fn end(self) {
        match self.never {}
    }
}
