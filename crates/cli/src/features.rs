//! The features of this program: parts that a build may leave out, down to a command that makes, mounts, checks and
//! copies volumes on files and block devices.
//!
//! A command of a missing feature stays in the command tree (`commands/without_*.rs`): its help and its one message name the
//! feature. A part below the commands has a module of the same interface, `without_*.rs`, which fails with that message.

use std::sync::LazyLock;

use crate::failure::{Code, Failure, Kind};

/// See the module's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    Cloud,
    Crash,
    Flash,
    Nfs,
    Pm,
    Store,
    Tls,
}

/// Commands that a feature brings, by the names of their manual pages.
const COMMANDS: [(&str, Feature); 5] = [
    ("steadfast-crash", Feature::Crash),
    ("steadfast-ftl", Feature::Flash),
    ("steadfast-serve-disk", Feature::Flash),
    ("steadfast-serve-nfs", Feature::Nfs),
    ("steadfast-store", Feature::Store),
];

impl Feature {
    const ALL: [Feature; 7] = [
        Feature::Cloud,
        Feature::Crash,
        Feature::Flash,
        Feature::Nfs,
        Feature::Pm,
        Feature::Store,
        Feature::Tls,
    ];

    /// Its name in Cargo.toml.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Feature::Cloud => "cloud",
            Feature::Crash => "crash",
            Feature::Flash => "flash",
            Feature::Nfs => "nfs",
            Feature::Pm => "pm",
            Feature::Store => "store",
            Feature::Tls => "tls",
        }
    }

    /// Whether this program has it.
    pub(crate) const fn is_built(self) -> bool {
        match self {
            Feature::Cloud => cfg!(feature = "cloud"),
            Feature::Crash => cfg!(feature = "crash"),
            Feature::Flash => cfg!(feature = "flash"),
            Feature::Nfs => cfg!(feature = "nfs"),
            Feature::Pm => cfg!(feature = "pm"),
            Feature::Store => cfg!(feature = "store"),
            Feature::Tls => cfg!(feature = "tls"),
        }
    }

    /// The failure for what needs it. The crash commands keep exit code 1 for findings.
    pub(crate) fn lacks(self, what: &str) -> Failure {
        let name = self.name();
        let failure = Failure::new(format!(
            "{what}: not in this program, which was built without the feature `{name}`; 'cargo install steadfast-cli --features {name}' \
             builds one with it"
        ));
        let failure = failure.of_kind(Kind::NotBuilt);
        match self {
            Feature::Crash => failure.with_code(Code::NotRun),
            _ => failure,
        }
    }

    /// # Errors
    /// The program lacks the feature that `what` needs.
    pub(crate) fn require(self, what: &str) -> Result<(), Failure> {
        match self.is_built() {
            true => Ok(()),
            false => Err(self.lacks(what)),
        }
    }

    /// The missing feature of a command or of one below it, by the name of its manual page.
    pub(crate) fn missing_for(page: &str) -> Option<Feature> {
        let is = |name: &str| {
            let rest = page.strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        let found = COMMANDS.iter().find(|(name, _)| is(name));
        found
            .map(|(_, feature)| *feature)
            .filter(|feature| !feature.is_built())
    }
}

/// The version, and the features of this program, a line each.
pub(crate) fn long_version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(version_text);
    &TEXT
}

fn version_text() -> String {
    let names = |built: bool| {
        let of = |feature: &Feature| feature.is_built() == built;
        let names: Vec<_> = Feature::ALL
            .into_iter()
            .filter(of)
            .map(Feature::name)
            .collect();
        match names.is_empty() {
            true => "none".to_owned(),
            false => names.join(", "),
        }
    };
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "{version}\nfeatures: {}\nwithout:  {}",
        names(true),
        names(false)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_names_each_feature_once() {
        let text = long_version();
        assert!(text.starts_with(env!("CARGO_PKG_VERSION")), "{text}");
        let words: Vec<&str> = text.split([' ', ',', '\n']).collect();
        for feature in Feature::ALL {
            let count = words.iter().filter(|word| **word == feature.name()).count();
            assert_eq!(count, 1, "{text}: {}", feature.name());
        }
    }

    #[test]
    fn a_missing_feature_is_named_with_the_way_to_get_it() {
        for feature in Feature::ALL {
            let failure = feature.lacks("store probe");
            let name = feature.name();
            assert!(
                failure
                    .message
                    .starts_with("store probe: not in this program")
            );
            assert!(
                failure
                    .message
                    .contains(&format!("without the feature `{name}`"))
            );
            assert!(
                failure
                    .message
                    .contains(&format!("cargo install steadfast-cli --features {name}'"))
            );
            assert_eq!(failure.kind, Kind::NotBuilt);
            let code = if feature == Feature::Crash {
                Code::NotRun
            } else {
                Code::Failed
            };
            assert_eq!(failure.code, code, "{name}");
            assert_eq!(feature.require("store probe").is_err(), !feature.is_built());
        }
    }

    /// The manifest and this module agree.
    #[test]
    fn the_manifest_has_these_features() {
        let manifest = include_str!("../Cargo.toml");
        let default = manifest
            .lines()
            .find_map(|line| line.strip_prefix("default = "));
        let names = Feature::ALL.map(|feature| format!("{:?}", feature.name()));
        assert_eq!(default, Some(format!("[{}]", names.join(", ")).as_str()));
    }
}
