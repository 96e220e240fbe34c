//! `LABEL=` and `UUID=` in the place of an image: the block device with such a volume.

use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::text;
use crate::volume::{self, Access};

/// Name of a volume.
enum Wanted<'a> {
    Label(&'a str),
    Uuid(&'a str),
}

impl Wanted<'_> {
    fn of(image: &Path) -> Option<Wanted<'_>> {
        // A file of such a name can still be mounted, as ./LABEL=x.
        let text = image.to_str()?;
        let value = |text: &'static str, whole| str::strip_prefix(whole, text);
        value("LABEL=", text)
            .map(|label| Wanted::Label(label.trim_matches('"')))
            .or_else(|| value("UUID=", text).map(|uuid| Wanted::Uuid(uuid.trim_matches('"'))))
    }

    fn is_on(&self, device: &Path) -> bool {
        // Without a lock: if it is mounted, the mount says so.
        let found = volume::open_device(device, Access::Peek, None)
            .and_then(|opened| volume::summary(device, &opened));
        found.is_ok_and(|found| match self {
            Wanted::Label(label) => found.label == *label,
            Wanted::Uuid(uuid) => text::uuid(&found.uuid).eq_ignore_ascii_case(uuid),
        })
    }

    fn text(&self) -> String {
        match self {
            Wanted::Label(label) => format!("the label '{label}'"),
            Wanted::Uuid(uuid) => format!("the identity '{uuid}'"),
        }
    }
}

/// The image that an argument names.
pub(crate) fn resolve(image: &Path) -> Result<PathBuf, Failure> {
    let Some(wanted) = Wanted::of(image) else {
        return Ok(image.to_owned());
    };
    let list = Path::new("/proc/partitions");
    let partitions = std::fs::read_to_string(list).map_err(|e| Failure::at(list, e))?;
    let names = partitions
        .lines()
        .filter_map(|line| line.split_whitespace().nth(3));
    let devices = names.map(|name| Path::new("/dev").join(name.replace('!', "/")));
    let mut found: Vec<PathBuf> = devices.filter(|device| wanted.is_on(device)).collect();
    match (found.pop(), found.is_empty()) {
        (Some(device), true) => Ok(device),
        (None, _) => Err(Failure::new(format!(
            "no block device has a volume with {}",
            wanted.text()
        ))),
        (Some(device), false) => {
            found.push(device);
            let names: Vec<String> = found
                .iter()
                .map(|device| device.display().to_string())
                .collect();
            Err(Failure::new(format!(
                "several block devices have a volume with {}: {}",
                wanted.text(),
                names.join(", ")
            )))
        }
    }
}
