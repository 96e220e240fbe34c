//! The words after `-o`. `table` declares them; parser, help and manual come from there.

mod table;

use std::path::PathBuf;
use std::time::Duration;

use crate::failure::Failure;
use crate::features::Feature;
use crate::volume::store::StoreSettings;
use table::{Effect, ROWS, Row, Word};

/// All options of `-o`: those of the mount, of the file system, and of this command.
#[derive(Clone)]
pub(crate) struct Options {
    /// Options of the mount.
    pub(crate) mount: steadfast_fuse::MountOptions,
    /// Options of a file system on a block device.
    pub(crate) volume: steadfast_fs::MountOptions,
    /// In persistent memory: overwrites go to their place.
    pub(crate) in_place: bool,
    /// Options of a volume on an object store.
    pub(crate) store: StoreSettings,
    /// Interval at which to look for flushes of another machine, which writes the volume.
    pub(crate) follow: Option<Duration>,
    /// The volume must run under this contract.
    pub(crate) contract: Option<String>,
    /// Bypass the host's page cache (`Some(true)`), or use it (`Some(false)`).
    pub(crate) direct: Option<bool>,
    /// Requests that may be in progress at a time.
    pub(crate) threads: Option<usize>,
    /// Unmount when the server ends.
    pub(crate) auto_unmount: bool,
    /// File for the server's messages.
    pub(crate) log: Option<PathBuf>,
    /// File for a line per request.
    pub(crate) trace: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            mount: steadfast_fuse::MountOptions::new(PathBuf::new())
                .subtype(steadfast_fuse::mountinfo::SUBTYPE),
            volume: steadfast_fs::MountOptions::default(),
            in_place: false,
            store: StoreSettings::default(),
            follow: None,
            contract: None,
            direct: None,
            threads: None,
            auto_unmount: false,
            log: None,
            trace: None,
        }
    }
}

impl Options {
    /// Whether nothing is changed, not even the log replayed on the image.
    pub(crate) fn read_only(&self) -> bool {
        self.volume.read_only
    }

    /// Refuses options of features that are not built.
    pub(crate) fn check_features(&self) -> Result<(), Failure> {
        if self.store != StoreSettings::default() || self.follow.is_some() {
            Feature::Store.require("mount options of object stores")?;
        }
        if self.in_place {
            Feature::Pm.require("the mount option 'in_place'")?;
        }
        Ok(())
    }

    pub(crate) fn set_read_only(&mut self, read_only: bool) {
        (self.mount.read_only, self.volume.read_only) = (read_only, read_only);
    }
}

/// Reads the arguments of all `-o`; of two that contradict each other, the later holds.
pub(crate) fn parse(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options::default();
    let words = arguments.iter().flat_map(|argument| argument.split(','));
    for word in words.map(str::trim).filter(|word| !word.is_empty()) {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        apply(&mut options, name, value)?;
    }
    Ok(options)
}

fn apply(options: &mut Options, name: &str, value: Option<&str>) -> Result<(), String> {
    let (row, word) = find(name).ok_or_else(|| {
        format!(
            "unknown option '{name}'; known are: {} ('steadfast mount --help' explains them)",
            names(|effect| matches!(effect, Effect::Flag(_) | Effect::Value(..)))
        )
    })?;
    match (word.effect, value) {
        (Effect::Flag(set), None) => set(options),
        (Effect::Flag(_), Some(_)) => return Err(format!("option '{name}' takes no value")),
        (Effect::Value(_, set), Some(value)) => {
            set(options, value).map_err(|e| format!("option '{name}': {e}"))?;
        }
        (Effect::Value(form, _), None) => {
            return Err(format!("option '{name}' needs a value: {name}={form}"));
        }
        (Effect::Nothing, _) => {}
        (Effect::Judged(judge), value) => {
            judge(value.unwrap_or_default()).map_err(|e| format!("option '{name}': {e}"))?;
        }
        (Effect::Refused, _) => {
            return Err(format!("option '{name}' is not available: {}", row.help));
        }
    }
    Ok(())
}

/// The declaration of a word.
fn find(name: &str) -> Option<(&'static Row, &'static Word)> {
    let is = |word: &Word| match word.name.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == word.name,
    };
    ROWS.iter().find_map(|row| {
        let word = row.words.iter().find(|word| is(word))?;
        Some((row, word))
    })
}

/// The words with a wanted effect, separated by commas.
fn names(wanted: impl Fn(Effect) -> bool) -> String {
    let words = ROWS.iter().flat_map(|row| row.words);
    let names = words.filter(|word| wanted(word.effect)).map(Word::form);
    names.collect::<Vec<_>>().join(", ")
}

/// The options explained, for `--help`; mount.steadfast(8) says more.
pub(crate) fn help() -> String {
    const WIDTH: usize = 18;
    let mut help =
        "Mount options, separated by commas; of two that contradict each other, the later holds:\n"
            .to_owned();
    let mut last = None;
    for row in ROWS {
        let part = Part::of(row);
        if last.is_some() && last != Some(part) {
            help.push_str(match part {
                Part::Works => "",
                Part::NoEffect => "\nAccepted, without effect:\n",
                Part::Refused => "\nRefused:\n",
            });
        }
        if last.is_none() {
            help.push('\n');
        }
        last = Some(part);
        let forms: Vec<String> = row.words.iter().map(Word::form).collect();
        let forms = forms.join(", ");
        let gap = if forms.len() < WIDTH {
            ""
        } else {
            "\n                  "
        };
        help.push_str(&format!("{forms:<WIDTH$}{gap}{}\n", row.help));
    }
    help.trim_end().to_owned()
}

/// The part of the help and the manual that a declaration belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Works,
    NoEffect,
    Refused,
}

impl Part {
    fn of(row: &Row) -> Part {
        match row.words.first().map(|word| word.effect) {
            Some(Effect::Nothing) => Part::NoEffect,
            Some(Effect::Refused) => Part::Refused,
            _ => Part::Works,
        }
    }
}

/// The options for the manual, in roff.
pub(crate) fn manual() -> String {
    let mut page = String::new();
    let mut last = Part::Works;
    for row in ROWS {
        let part = Part::of(row);
        if part != last {
            page.push_str(match part {
                Part::Works => "",
                Part::NoEffect => ".SS \"Accepted, without effect\"\n",
                Part::Refused => ".SS Refused\n",
            });
        }
        last = part;
        let forms = row
            .words
            .iter()
            .map(|word| match word.form().split_once('=') {
                Some((name, form)) => format!("\\fB{name}=\\fI{form}\\fR"),
                None => format!("\\fB{}\\fR", word.name),
            });
        let forms = forms.collect::<Vec<_>>().join(", ").replace('-', "\\-");
        page.push_str(&format!(".TP\n{forms}\n"));
        if row.manual.is_empty() {
            let text = row.help.replace('-', "\\-");
            let mut letters = text.chars();
            let first = letters
                .next()
                .map(|letter| letter.to_uppercase().to_string());
            page.push_str(&format!(
                "{}{}.\n",
                first.unwrap_or_default(),
                letters.as_str()
            ));
        } else {
            page.push_str(row.manual);
            page.push('\n');
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Options, String> {
        parse(&[text.to_owned()])
    }

    #[test]
    fn options_are_understood_and_the_later_one_holds() {
        let options = read("ro,allow_other,threads=4,cache=64M,commit=5,direct,noatime,log=/x/y");
        let options = options.unwrap_or_default();
        assert!(options.mount.read_only && options.volume.read_only && options.mount.allow_other);
        assert_eq!(options.threads, Some(4));
        assert_eq!(options.direct, Some(true));
        assert_eq!(options.volume.cache_bytes, 64 << 20);
        assert_eq!(options.volume.commit_interval, Duration::from_secs(5));
        assert_eq!(options.log, Some("/x/y".into()));
        assert!(read("noatime,relatime").is_ok_and(|options| options.mount.relatime));
        assert!(read("relatime,noatime").is_ok_and(|options| !options.mount.relatime));
        for words in [&["ro,rw,,defaults, noatime"][..], &["ro", "rw"]] {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            assert!(
                parse(&words).is_ok_and(|options| !options.read_only() && !options.mount.read_only)
            );
        }
    }

    #[test]
    fn an_unknown_option_is_refused_with_the_list_of_known_ones() {
        for text in ["frobnicate", "ro,frobnicate=3", "RO"] {
            let error = read(text).err().unwrap_or_default();
            assert!(
                error.contains("unknown option") && error.contains("allow_other"),
                "{error}"
            );
        }
    }

    #[test]
    fn values_are_checked() {
        for text in [
            "threads",
            "threads=0",
            "threads=65",
            "threads=x",
            "cache=1K",
            "cache=1X",
            "commit=0",
            "commit_gap=11s",
            "commit_gap=-1ms",
            "contract=none",
            "contract",
            "strictatime",
            "ro=1",
            "log=",
            "trace=",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    /// Users have these options in their fstab, written for other file systems.
    #[test]
    fn options_of_an_fstab_work_are_harmless_or_are_explained() {
        let harmless = "defaults,auto,noauto,user,nouser,users,owner,group,nofail,_netdev,comment=x,x-systemd.automount,\
            x-gvfs-show,async,nodiratime,diratime,lazytime,nolazytime,silent,loud,iversion,noiversion,nomand,norelatime,\
            default_permissions,acl,noacl,fsname=/dev/x,subtype=y,nonempty,user_xattr,max_read=131072,big_writes,kernel_cache,\
            errors=remount-ro,discard,auto_unmount,nosymfollow,sync,dirsync";
        for word in harmless.split(',') {
            assert!(read(word).is_ok(), "{word}: {:?}", read(word).err());
        }
        for (word, reason) in [
            ("uid=1000", "chown"),
            ("gid=1000", "chown"),
            ("umask=022", "chmod"),
            ("errors=continue", "read-only"),
            ("errors=panic", "read-only"),
            ("mand", "5.15"),
            ("strictatime", "relatime"),
            ("direct_io", "O_DIRECT"),
        ] {
            let error = read(word).err().unwrap_or_default();
            assert!(error.contains(reason), "{word}: {error}");
        }
        assert!(read("sync").is_ok_and(|options| options.mount.sync && options.mount.dir_sync));
        assert!(
            read("sync,async").is_ok_and(|options| !options.mount.sync && !options.mount.dir_sync)
        );
    }

    #[test]
    fn help_and_manual_explain_every_word_and_no_word_is_declared_twice() {
        let (help, manual) = (help(), manual().replace("\\-", "-"));
        let mut seen = std::collections::BTreeSet::new();
        for word in ROWS.iter().flat_map(|row| row.words) {
            assert!(seen.insert(word.name), "{}", word.name);
            assert!(
                help.split([' ', ',', '\n'])
                    .any(|shown| shown == word.form()),
                "{}",
                word.name
            );
            assert!(
                manual.contains(&format!("\\fB{}", word.name)),
                "{}",
                word.name
            );
        }
        for line in help.lines() {
            assert!(line.len() <= 140, "{line}");
        }
        for line in manual.lines() {
            assert!(
                line.is_ascii() && line.len() <= 140 && !line.ends_with(' '),
                "{line}"
            );
        }
    }
}
