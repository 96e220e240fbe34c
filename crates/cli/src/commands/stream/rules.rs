//! `steadfast stream rules`: streams for processes that were not put into one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::json;
use steadfast_stream::{Place, Rule, Settings};

use super::mounts::Target;
use super::show::{At, columns, heading, of_mount};
use super::{On, SettingArgs, cgroup, mounts, name_of, on_each};
use crate::failure::Failure;
use crate::text;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the rules of a volume
    List(ListArgs),
    /// Add a rule, or replace the rule of the same place
    Add(AddArgs),
    /// Remove a rule; processes that it moved stay where they are
    Remove(RemoveArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: At,
}

/// Place of a rule.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false, id = "place")]
struct PlaceArgs {
    /// Processes of a cgroup (version 2) and of those below it, by its path as in /proc/PID/cgroup, or by its
    /// directory
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
    /// Processes that first change something below this directory of a mounted volume
    #[arg(long, value_name = "DIR", conflicts_with = "mounts")]
    directory: Option<PathBuf>,
    /// Processes whose environment has STEADFAST_STREAM, which names the stream
    #[arg(long)]
    environment: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AddArgs {
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    settings: SettingArgs,
    /// Owner of the stream, by number; only root names another user. Default: the caller
    #[arg(long, value_name = "UID")]
    user: Option<u32>,
    #[command(flatten)]
    on: On,
    /// Name of the stream; none with --environment
    #[arg(
        required_unless_present = "environment",
        conflicts_with = "environment"
    )]
    name: Option<OsString>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    on: On,
}

impl PlaceArgs {
    /// The place, and the mounts to ask.
    fn find(&self, on: &On) -> Result<(Place, Vec<Target>), Failure> {
        if let Some(dir) = &self.directory {
            let is_dir = std::fs::metadata(dir)
                .map_err(|e| Failure::at(dir, e))?
                .is_dir();
            if !is_dir {
                return Err(Failure::at(dir, "is not a directory"));
            }
            return Ok((Place::Directory, vec![mounts::one(Some(dir))?]));
        }
        let place = match &self.cgroup {
            None => Place::Environment,
            Some(named) => Place::Cgroup(cgroup_path(named)?),
        };
        Ok((place, mounts::chosen(&on.mounts)?))
    }
}

fn cgroup_path(named: &Path) -> Result<String, Failure> {
    cgroup::path_of(named).ok_or_else(|| {
        let why = "is no path of a cgroup; write it as /proc/PID/cgroup has it after '0::'";
        Failure::at(named, why)
    })
}

pub(super) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::List(args) => list(args),
        Command::Add(args) => add(args),
        Command::Remove(args) => remove(args),
    }
}

fn add(args: &AddArgs) -> Result<(), Failure> {
    let name = args.name.as_ref().map(name_of).transpose()?;
    let (place, targets) = args.place.find(&args.on)?;
    let settings = Settings {
        user: args.user,
        ..args.settings.settings()
    };
    on_each(&targets, |path| {
        steadfast_stream::add_rule(path, &place, name.unwrap_or_default(), &settings)
    })
}

fn remove(args: &RemoveArgs) -> Result<(), Failure> {
    let (place, targets) = args.place.find(&args.on)?;
    on_each(&targets, |path| steadfast_stream::remove_rule(path, &place))
}

fn list(args: &ListArgs) -> Result<(), Failure> {
    let target = args.at.target()?;
    let rules = steadfast_stream::rules(&target.path)?;
    if args.json {
        let mut object = of_mount(&target);
        let rules = rules.iter().map(|rule| {
            let (inode, path) = rule.directory.clone().unzip();
            json!({
                "kind": kind(&rule.place),
                "cgroup": match &rule.place { Place::Cgroup(path) => Some(path), _ => None },
                "inode": inode,
                "path": path.flatten().map(|path| path.to_string_lossy().into_owned()),
                "name": (rule.place != Place::Environment).then_some(&rule.name),
                "user": (rule.place != Place::Environment).then_some(rule.user),
            })
        });
        object.insert("rules".into(), rules.collect());
        return text::print_json(&object);
    }
    if rules.is_empty() {
        return text::print(&format!("{}\n  no rules", heading(&target)));
    }
    let mut rows = vec![
        ["PROCESSES OF", "", "STREAM", "USER"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(rules.iter().map(row));
    text::print(&format!("{}\n{}", heading(&target), columns(&rows, &[3])))
}

fn kind(place: &Place) -> &'static str {
    match place {
        Place::Cgroup(_) => "cgroup",
        Place::Directory => "directory",
        Place::Environment => "environment",
    }
}

fn row(rule: &Rule) -> Vec<String> {
    let kind = kind(&rule.place).to_owned();
    let at = match (&rule.place, &rule.directory) {
        (Place::Environment, _) => {
            let variable = steadfast_stream::ENVIRONMENT.to_owned();
            return vec![
                kind,
                variable,
                "its value".to_owned(),
                "their own".to_owned(),
            ];
        }
        (Place::Cgroup(path), _) => path.clone(),
        (Place::Directory, Some((_, Some(path)))) => super::stats::printable(path),
        (Place::Directory, Some((inode, None))) => format!("inode {inode}"),
        (Place::Directory, None) => String::new(),
    };
    vec![kind, at, rule.name.clone(), rule.user.to_string()]
}
