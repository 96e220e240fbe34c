//! The settings of a server of a disk, as `key=value`, and how it opens the image.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use steadfast_ftl::{Disk, DiskError, WhenFull};

use crate::medium::Medium;
#[cfg(feature = "store")]
use crate::store::{self, StoreError, StoreSettings};
#[cfg(feature = "trial")]
use crate::trial::{Fault, Trial, TrialOptions};

/// Handling of a write that the epoch has no room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Full {
    /// The disk flushes and goes on: for clients that know no more of a disk than that its cache is
    /// bounded. A crash returns to the last flush, or to a later moment when an epoch was full.
    #[default]
    Flush,
    /// It waits so long for another client's flush, then is refused (ENOSPC). A crash returns to the
    /// last flush and to nothing else.
    Wait(Duration),
}

/// Default time that a write waits.
const PATIENCE: Duration = Duration::from_secs(5);

impl std::str::FromStr for Full {
    type Err = String;

    fn from_str(text: &str) -> Result<Full, String> {
        match text.split_once(':') {
            None if text == "flush" => Ok(Full::Flush),
            None if text == "wait" => Ok(Full::Wait(PATIENCE)),
            Some(("wait", seconds)) => match seconds.parse::<u32>() {
                Ok(seconds) => Ok(Full::Wait(Duration::from_secs(seconds.into()))),
                Err(_) => Err(format!("'{seconds}' is no number of seconds")),
            },
            _ => Err(format!(
                "'{text}' is neither 'flush', 'wait' nor 'wait:SECONDS'"
            )),
        }
    }
}

impl std::fmt::Display for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Full::Flush => f.write_str("flush"),
            Full::Wait(patience) => write!(f, "wait:{}", patience.as_secs()),
        }
    }
}

/// Handling of unflushed writes when the last client has disconnected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Gone {
    /// They stay, as in the cache of a real disk, for the next client to find or flush.
    #[default]
    Keep,
    /// They are flushed.
    Flush,
    /// They are forgotten: the next client begins at the last flush, as after a power cut.
    RollBack,
}

impl Gone {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Gone::Keep => "keep",
            Gone::Flush => "flush",
            Gone::RollBack => "rollback",
        }
    }
}

impl std::str::FromStr for Gone {
    type Err = String;

    fn from_str(text: &str) -> Result<Gone, String> {
        [Gone::Keep, Gone::Flush, Gone::RollBack]
            .into_iter()
            .find(|gone| gone.name() == text)
            .ok_or_else(|| format!("'{text}' is neither 'keep', 'flush' nor 'rollback'"))
    }
}

/// See the module's header.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The flash image, or the URL of a volume on an object store.
    pub image: Option<PathBuf>,
    /// Handling of a full epoch.
    pub full: Full,
    /// Handling of the last client's disconnection.
    pub gone: Gone,
    /// Writes are refused, and the image is not changed.
    pub read_only: bool,
    /// A file to tell when clients can come, and how the disk was closed.
    pub status: Option<PathBuf>,
    /// A file to read from: when there is a byte, or an end, the server closes the disk and ends.
    pub control: Option<PathBuf>,
    /// Settings for opening a volume on an object store.
    #[cfg(feature = "store")]
    pub store: StoreSettings,
    /// For tests of crashes.
    #[cfg(feature = "trial")]
    pub trial: TrialOptions,
}

/// Reason why a disk cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The flash image.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The volume on an object store.
    #[cfg(feature = "store")]
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Known keys, for `nbdkit --help` and for messages.
const KEYS: &str = "image, full, gone, readonly, status, control";

impl Settings {
    /// Takes one.
    ///
    /// # Errors
    /// In words: the key is not known, or its value is none.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let wrong = |why: String| format!("{key}={value}: {why}");
        match key {
            "image" => self.image = Some(value.into()),
            "full" => self.full = value.parse().map_err(wrong)?,
            "gone" => self.gone = value.parse().map_err(wrong)?,
            "readonly" => {
                self.read_only = match value {
                    "true" | "yes" | "1" => true,
                    "false" | "no" | "0" => false,
                    _ => return Err(wrong("say 'true' or 'false'".to_owned())),
                }
            }
            "status" => self.status = Some(value.into()),
            "control" => self.control = Some(value.into()),
            _ => return self.set_for_store(key, value),
        }
        Ok(())
    }

    #[cfg(feature = "store")]
    fn set_for_store(&mut self, key: &str, value: &str) -> Result<(), String> {
        match self.store.set(key, value) {
            Some(taken) => taken.map_err(|why| format!("{key}={value}: {why}")),
            None => Err(format!(
                "'{key}' is not known; there are {KEYS}, and for the URL of a volume {}",
                store::KEYS
            )),
        }
    }

    #[cfg(not(feature = "store"))]
    #[expect(
        clippy::unused_self,
        reason = "the same call with and without the feature"
    )]
    fn set_for_store(&mut self, key: &str, _: &str) -> Result<(), String> {
        Err(format!("'{key}' is not known; there are {KEYS}"))
    }

    /// The URL of the volume on an object store, if the image is one.
    #[must_use]
    pub fn url(&self) -> Option<&str> {
        #[cfg(feature = "store")]
        {
            let image = self.image.as_ref()?.to_str()?;
            steadfast_store::is_url(image).then_some(image)
        }
        #[cfg(not(feature = "store"))]
        None
    }

    /// Takes one, or one of a trial: for the plugin of tests alone.
    ///
    /// # Errors
    /// As for [`set`](Settings::set).
    #[cfg(feature = "trial")]
    pub fn set_trial(&mut self, key: &str, value: &str) -> Result<(), String> {
        let wrong = |why: String| format!("{key}={value}: {why}");
        match key {
            "record" => self.trial.record = Some(value.into()),
            "cut" => {
                let seed = value.parse();
                self.trial.cut = Some(seed.map_err(|_| wrong("no number".to_owned()))?);
            }
            "fault" => self.trial.fault = Some(value.parse::<Fault>().map_err(wrong)?),
            _ => return self.set(key, value),
        }
        Ok(())
    }

    /// The settings, as `set` takes them, for another process.
    #[must_use]
    pub fn words(&self) -> Vec<std::ffi::OsString> {
        let mut words: Vec<std::ffi::OsString> = Vec::new();
        let mut add = |key: &str, value: &std::ffi::OsStr| {
            let mut word = std::ffi::OsString::from(key);
            word.push("=");
            word.push(value);
            words.push(word);
        };
        if let Some(image) = &self.image {
            add("image", image.as_os_str());
        }
        add("full", self.full.to_string().as_ref());
        add("gone", self.gone.name().as_ref());
        if self.read_only {
            add("readonly", "true".as_ref());
        }
        if let Some(status) = &self.status {
            add("status", status.as_os_str());
        }
        if let Some(control) = &self.control {
            add("control", control.as_os_str());
        }
        #[cfg(feature = "store")]
        self.store.words(&mut add);
        #[cfg(feature = "trial")]
        {
            if let Some(record) = &self.trial.record {
                add("record", record.as_os_str());
            }
            if let Some(seed) = self.trial.cut {
                add("cut", seed.to_string().as_ref());
            }
            if let Some(fault) = self.trial.fault {
                add("fault", fault.name().as_ref());
            }
        }
        words
    }

    /// Opens the disk to serve: a flash image, or a volume on an object store.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_any(&self) -> Result<Arc<dyn Medium>, OpenError> {
        #[cfg(feature = "store")]
        if let Some(url) = self.url() {
            return Ok(Arc::new(self.store.open(url, self.read_only)?));
        }
        Ok(self.open()?)
    }

    /// Opens the image: alone, or beside others that look at it. The disk has the state of its last
    /// flush.
    ///
    /// # Errors
    /// [`DiskError`]; of the record's file, as an error of the image.
    pub fn open(&self) -> Result<Arc<dyn Medium>, DiskError> {
        let image = self.image.clone().unwrap_or_default();
        if self.read_only {
            return Ok(Arc::new(Disk::open_read_only(&image)?));
        }
        #[cfg(feature = "trial")]
        if self.trial.is_one() {
            // A write that waited would keep flushes from the record.
            let when_full = match self.full {
                Full::Flush => WhenFull::Flush,
                Full::Wait(_) => WhenFull::Wait(Duration::ZERO),
            };
            let disk = Disk::open(&image, when_full)?;
            let exact = matches!(self.full, Full::Wait(_));
            let trial = Trial::new(disk, exact, &self.trial)?;
            if self.trial.cut.is_some() {
                trial.listen()?;
            }
            return Ok(trial);
        }
        let when_full = match self.full {
            Full::Flush => WhenFull::Flush,
            Full::Wait(patience) => WhenFull::Wait(patience),
        };
        Ok(Arc::new(Disk::open(&image, when_full)?))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn settings_are_understood_as_they_are_handed_on() {
        let mut settings = Settings::default();
        for (key, value) in [
            ("image", "/a b/c=d"),
            ("full", "wait:7"),
            ("gone", "rollback"),
            ("readonly", "true"),
            ("status", "/proc/self/fd/9"),
            ("control", "c"),
        ] {
            settings.set(key, value).unwrap();
        }
        let trial = [
            ("record", "r"),
            ("cut", "18446744073709551615"),
            ("fault", "flush-ignored"),
        ];
        for (key, value) in trial {
            settings.set_trial(key, value).unwrap();
            // A server that people start takes none of these.
            let why = Settings::default().set(key, value).unwrap_err();
            assert!(why.contains("is not known"), "{why}");
        }
        let mut other = Settings::default();
        for word in settings.words() {
            let word = word.into_string().unwrap();
            let (key, value) = word.split_once('=').unwrap();
            other.set_trial(key, value).unwrap();
        }
        assert_eq!(format!("{settings:?}"), format!("{other:?}"));
        assert_eq!("wait".parse(), Ok(Full::Wait(PATIENCE)));
        for (key, value) in [
            ("full", "never"),
            ("full", "wait:"),
            ("full", "flush:1"),
            ("gone", ""),
            ("readonly", "perhaps"),
            ("cut", "-1"),
            ("fault", "none"),
            ("size", "1G"),
        ] {
            let why = settings.set_trial(key, value).unwrap_err();
            assert!(
                why.contains(if key == "size" { key } else { value }),
                "{why}"
            );
        }
    }
}
