//! Volumes on object stores in a program without the feature `store`: URLs are known, and refused.

use std::path::Path;

pub(crate) use super::settings::StoreSettings;
use super::{Access, Device, Unopened};
use crate::failure::Failure;
use crate::features::Feature;

/// A volume on an object store, as it is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url(String);

/// The URL, if an image is one.
pub(crate) fn url(image: &Path) -> Option<Url> {
    let text = image.to_str()?;
    let (scheme, _) = text.split_once("://")?;
    let known = ["s3", "az", "gs", "file", "memory"].contains(&scheme);
    known.then(|| Url(text.to_owned()))
}

/// The failure for a URL. It names the features that the URL needs.
pub(crate) fn refusal(url: &Url) -> Failure {
    match url.0.starts_with("file:") {
        true => Feature::Store.lacks(&url.0),
        false => Feature::Cloud.lacks(&url.0),
    }
}

fn refuse<T>(url: &Url) -> Result<T, Failure> {
    Err(refusal(url))
}

/// A state of another machine. There is none.
pub(crate) enum Follower {}

pub(crate) fn follow(
    image: &Path,
    _access: Access,
    _wishes: &StoreSettings,
) -> Result<(Follower, Device), Failure> {
    match url(image) {
        Some(url) => refuse(&url),
        None => Err(Feature::Store.lacks("the option 'follow'")),
    }
}

pub(super) fn open(
    url: &Url,
    _access: Access,
    _wishes: &StoreSettings,
) -> Result<Device, Unopened> {
    refuse(url).map_err(Unopened::Failed)
}

pub(super) fn open_with_key(
    url: &Url,
    access: Access,
    _key_file: Option<&Path>,
) -> Result<Device, Failure> {
    open_for_mount(url, access, &StoreSettings::default())
}

pub(crate) fn open_for_mount(
    url: &Url,
    access: Access,
    wishes: &StoreSettings,
) -> Result<Device, Failure> {
    open(url, access, wishes).map_err(Unopened::failure)
}

/// The disk of a volume, to make it larger. There is none.
pub(crate) enum GrowingDisk {}

impl GrowingDisk {
    pub(crate) fn device(&self) -> Device {
        match *self {}
    }

    pub(crate) fn grow(&self, _image: &Path, _blocks: u64) -> Result<(), Failure> {
        match *self {}
    }

    pub(crate) fn release(self, _image: &Path) -> Result<(), Failure> {
        match self {}
    }
}

pub(crate) fn open_to_grow(url: &Url, _key_file: Option<&Path>) -> Result<GrowingDisk, Failure> {
    refuse(url)
}

#[cfg(feature = "nfs")]
pub(crate) use serving::*;

/// Fail-over of servers. Nothing of it can be made.
#[cfg(feature = "nfs")]
mod serving {
    use super::{Device, Failure, Url, refuse};

    #[derive(Clone, Copy, Debug)]
    pub(crate) enum Serving {}
    pub(crate) enum Served {}
    pub(crate) enum ServingLease {}
    pub(crate) enum Successor {}
    pub(crate) enum Failed {}

    impl Served {
        pub(crate) fn device(&self) -> Device {
            match *self {}
        }

        pub(crate) fn verifier(&self) -> u64 {
            match *self {}
        }

        pub(crate) fn notes(&self) -> Vec<Vec<u8>> {
            match *self {}
        }

        pub(crate) fn lease(&self) -> Option<ServingLease> {
            match *self {}
        }
    }

    pub(crate) fn open_to_serve(
        url: &Url,
        _serving: &Serving,
        _successor: Option<&Successor>,
    ) -> Result<Served, Failure> {
        refuse(url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Kind;

    #[test]
    fn a_url_is_refused_with_the_feature_that_it_needs() {
        for (text, feature) in [("file:///srv/v", "store"), ("s3://b/p@day", "cloud")] {
            let image = Path::new(text);
            let Some(url) = url(image) else {
                panic!("{text}");
            };
            let failure = open_for_mount(&url, Access::Look, &StoreSettings::default()).err();
            let Some(failure) = failure else {
                panic!("{text}");
            };
            assert_eq!(failure.kind, Kind::NotBuilt);
            assert!(failure.message.starts_with(text), "{}", failure.message);
            let wanted = format!("without the feature `{feature}`");
            assert!(failure.message.contains(&wanted), "{}", failure.message);
        }
        for file in ["image.img", "/srv/a@b", "file:x", "s3:/b/p", "https://x/y"] {
            assert_eq!(url(Path::new(file)), None, "{file}");
        }
    }
}
