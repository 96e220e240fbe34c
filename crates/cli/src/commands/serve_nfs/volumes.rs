//! The open volumes of a server: all that its exports name, each once.

use std::path::{Path, PathBuf};
use std::time::Duration;

use steadfast_nfs::{ExportedVolume, Source};

use super::config::{Plan, Wanted};
use crate::failure::{Failure, notice};
use crate::volume::store::{self, Serving, ServingLease, Successor};
use crate::volume::{self, Access, Volume};

/// Time to wait for an image that a server killed just now may still hold.
const IN_USE_PATIENCE: Duration = Duration::from_secs(3);
/// Memory for cached blocks of a volume on the smallest machine.
const CACHE_BYTES_LEAST: u64 = 64 << 20;

/// A volume that is open.
struct One {
    image: PathBuf,
    volume: Volume,
    /// Whether it was opened read-only, for good.
    read_only: bool,
    /// With fail-over: the disk.
    store: Option<store::Served>,
}

impl One {
    fn name(&self) -> String {
        self.image.display().to_string()
    }

    fn served(&self) -> ExportedVolume {
        let mut served = self.volume.served(&self.image);
        if let Some(store) = &self.store {
            served.verifier = Some(store.verifier());
            served.replies = store.notes();
            served.keeps_replies = true;
        }
        served
    }
}

/// See the module's header.
#[derive(Default)]
pub(crate) struct Opened(Vec<One>);

impl Opened {
    /// Opens all volumes of a plan, or none. With fail-over, they are on object stores.
    pub(crate) fn open(plan: &Plan, serving: Option<&Serving>) -> Result<Opened, Failure> {
        Opened::open_all(&plan.volumes, cache_bytes(plan), serving, &[])
    }

    /// Takes over the volumes that a stand-by has followed.
    #[cfg(feature = "store")]
    pub(crate) fn take_over(
        plan: &Plan,
        serving: &Serving,
        followed: &[(PathBuf, Successor)],
    ) -> Result<Opened, Failure> {
        Opened::open_all(&plan.volumes, cache_bytes(plan), Some(serving), followed)
    }

    fn open_all(
        volumes: &[Wanted],
        cache_bytes: u64,
        serving: Option<&Serving>,
        followed: &[(PathBuf, Successor)],
    ) -> Result<Opened, Failure> {
        let mut opened = Opened::default();
        for wanted in volumes {
            let followed = followed.iter().find(|(image, _)| *image == wanted.image);
            match open_one(wanted, cache_bytes, serving, followed.map(|(_, it)| it)) {
                Ok(one) => opened.0.push(one),
                Err(failure) => {
                    let _ = opened.close();
                    return Err(failure);
                }
            }
        }
        Ok(opened)
    }

    /// All of them, for the server.
    pub(crate) fn served(&self) -> Vec<ExportedVolume> {
        self.0.iter().map(One::served).collect()
    }

    /// The leases of the volumes with fail-over.
    pub(crate) fn leases(&self) -> Vec<(String, ServingLease)> {
        let lease = |one: &One| Some((one.name(), one.store.as_ref()?.lease()?));
        self.0.iter().filter_map(lease).collect()
    }

    /// The volumes of another plan in its order, and those that were opened for it.
    pub(crate) fn sources(
        &self,
        plan: &Plan,
        serving: Option<&Serving>,
    ) -> Result<(Vec<Source>, Opened), Failure> {
        let find = |image: &Path| self.0.iter().find(|one| one.image == image);
        let is_new = |wanted: &&Wanted| find(&wanted.image).is_none();
        for wanted in &plan.volumes {
            if !wanted.read_only && find(&wanted.image).is_some_and(|one| one.read_only) {
                return Err(Failure::at(
                    &wanted.image,
                    "was opened for reading only, as no export let anybody change it: start the server again to change that",
                ));
            }
        }
        let new: Vec<Wanted> = plan.volumes.iter().filter(is_new).cloned().collect();
        let new = Opened::open_all(&new, cache_bytes(plan), serving, &[])?;
        let source = |wanted: &Wanted| match find(&wanted.image) {
            Some(one) => Source::Kept(one.name()),
            None => {
                let mut opened = new.0.iter();
                let one = opened.find(|one| one.image == wanted.image);
                one.map_or_else(
                    || Source::Kept(wanted.image.display().to_string()),
                    |one| Source::New(one.served()),
                )
            }
        };
        Ok((plan.volumes.iter().map(source).collect(), new))
    }

    /// Adds others.
    pub(crate) fn take_in(&mut self, mut others: Opened) {
        self.0.append(&mut others.0);
    }

    /// Closes the volume of a name.
    pub(crate) fn close_one(&mut self, name: &str) -> Result<(), Failure> {
        match self.0.iter().position(|one| one.name() == name) {
            Some(at) => close(self.0.swap_remove(at)),
            None => Ok(()),
        }
    }

    /// Closes all.
    ///
    /// # Errors
    /// Every volume is closed; the first failure is returned.
    pub(crate) fn close(self) -> Result<(), Failure> {
        let mut result = Ok(());
        for one in self.0 {
            match close(one) {
                Err(failure) if result.is_ok() => result = Err(failure),
                Err(failure) => failure.report(),
                Ok(()) => {}
            }
        }
        result
    }
}

/// Memory for the cached blocks of each volume.
fn cache_bytes(plan: &Plan) -> u64 {
    let cache = plan.settings.cache.map(|cache| cache.0);
    cache.unwrap_or_else(|| default_cache(plan.volumes.len()))
}

/// An eighth of the memory, over all volumes.
fn default_cache(volumes: usize) -> u64 {
    let system = rustix::system::sysinfo();
    let memory = (system.totalram as u64).saturating_mul(u64::from(system.mem_unit));
    (memory / 8 / volumes.max(1) as u64).max(CACHE_BYTES_LEAST)
}

fn open_one(
    wanted: &Wanted,
    cache_bytes: u64,
    serving: Option<&Serving>,
    followed: Option<&Successor>,
) -> Result<One, Failure> {
    let (image, read_only) = (&wanted.image, wanted.read_only);
    let access = if read_only {
        Access::Look
    } else {
        Access::Change
    };
    let url = store::url(image).filter(|_| !read_only);
    let (device, store) = match (serving, url) {
        (Some(serving), Some(url)) => {
            let store = store::open_to_serve(&url, serving, followed)?;
            (store.device(), Some(store))
        }
        _ => {
            let device = volume::open_device_within(image, access, None, IN_USE_PATIENCE)?;
            (device, None)
        }
    };
    let mut options = crate::mount_options::Options::default();
    options.set_read_only(read_only);
    options.volume.cache_bytes = cache_bytes;
    options.volume.keep_data = true;
    options.volume.defer_commits = true;
    let (volume, messages) = volume::mount(image, device, &options)?;
    for message in messages {
        notice(&format!("{}: {message}", image.display()));
    }
    Ok(One {
        image: image.clone(),
        volume,
        read_only,
        store,
    })
}

fn close(one: One) -> Result<(), Failure> {
    for message in one.volume.close()? {
        notice(&format!("{}: {message}", one.image.display()));
    }
    Ok(())
}
