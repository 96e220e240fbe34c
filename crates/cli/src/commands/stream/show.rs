//! `steadfast stream list` and `steadfast stream show`: which streams there are, and which processes are in them.

use std::path::PathBuf;

use serde_json::{Map, Value, json};
use steadfast_stream::wire::Interval;
use steadfast_stream::{Error, Listed};

use super::mounts::{self, Target};
use crate::failure::Failure;
use crate::text;

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: At,
}

/// The mount.
#[derive(Debug, clap::Args)]
pub(super) struct At {
    /// The same as DIR
    #[arg(long, value_name = "DIR", conflicts_with = "path")]
    mount: Option<PathBuf>,
    /// Any file or directory of the mounted volume. Default: the volume of the current directory, or else the only
    /// mounted volume with streams
    #[arg(value_name = "DIR")]
    path: Option<PathBuf>,
}

impl At {
    pub(super) fn target(&self) -> Result<Target, Failure> {
        mounts::one(self.path.as_ref().or(self.mount.as_ref()))
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    /// Any file or directory of the mounted volume. Default: the volume of the current directory, or else the only
    /// mounted volume with streams
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// Number of the process, as the volume's server sees it
    pid: u32,
}

/// First fields of JSON about a mount.
pub(super) fn of_mount(target: &Target) -> Map<String, Value> {
    let path = |path: &PathBuf| Value::from(path.to_string_lossy());
    let mut object = Map::new();
    object.insert("image".into(), path(&target.mount.source));
    object.insert("mounted_at".into(), path(&target.mount.mount_point));
    object
}

/// Heading of a list for people.
pub(super) fn heading(target: &Target) -> String {
    format!(
        "{} at {}:",
        target.mount.source.display(),
        target.mount.mount_point.display()
    )
}

pub(super) fn list(args: &ListArgs) -> Result<(), Failure> {
    let target = args.at.target()?;
    let mut streams = steadfast_stream::list(&target.path)?;
    streams.sort_by(|a, b| (&a.name, a.user).cmp(&(&b.name, b.user)));
    if args.json {
        let mut object = of_mount(&target);
        let streams = streams.iter().map(|stream| {
            json!({
                "number": stream.number,
                "name": stream.name,
                "user": stream.user,
                "ignore_fsync": stream.ignore_fsync,
                "commit_interval_ms": interval_ms(stream.interval),
                "members_now": stream.members,
            })
        });
        object.insert("streams".into(), streams.collect());
        return text::print_json(&object);
    }
    if streams.is_empty() {
        return text::print(&format!(
            "{}\n  only the default stream",
            heading(&target).trim_end_matches(':')
        ));
    }
    let mut rows = vec![
        ["STREAM", "USER", "MEMBERS", "FSYNC", "COMMIT INTERVAL"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(streams.iter().map(row));
    let lines = columns(&rows, &[1, 2]);
    text::print(&format!("{}\n{lines}", heading(&target)))
}

fn row(stream: &Listed) -> Vec<String> {
    vec![
        stream.name.clone(),
        stream.user.to_string(),
        stream.members.to_string(),
        match stream.ignore_fsync {
            true => "ignored".to_owned(),
            false => "commits".to_owned(),
        },
        match interval_ms(stream.interval) {
            None => "as the volume".to_owned(),
            Some(ms) => format!("{} s", ms as f64 / 1000.0),
        },
    ]
}

fn interval_ms(interval: Interval) -> Option<u64> {
    match interval {
        Interval::Keep | Interval::Volume => None,
        Interval::Every(time) => u64::try_from(time.as_millis()).ok(),
    }
}

/// Aligns rows; the columns `right` have numbers.
pub(super) fn columns(rows: &[Vec<String>], right: &[usize]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let lines = rows.iter().map(|row| {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = widths[column];
            match right.contains(&column) {
                true => format!("{cell:>width$}"),
                false => format!("{cell:<width$}"),
            }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        format!("  {}", line.trim_end())
    });
    lines.collect::<Vec<_>>().join("\n")
}

pub(super) fn show(args: &Args) -> Result<(), Failure> {
    if args.pid == 0 {
        let why = "0 is not the number of a process";
        return Err(Error::Process { pid: 0, why }.into());
    }
    let target = mounts::one(args.mount.as_ref())?;
    let shown = steadfast_stream::show(&target.path, args.pid)?;
    if args.json {
        let mut object = of_mount(&target);
        object.insert("pid".into(), shown.pid.into());
        object.insert("number".into(), shown.number.into());
        let (name, user) = shown.name.unzip();
        object.insert("name".into(), name.into());
        object.insert("user".into(), user.into());
        object.insert("ignore_fsync".into(), shown.ignore_fsync.into());
        object.insert("because".into(), shown.because.into());
        return text::print_json(&object);
    }
    let stream = match &shown.name {
        None => "the default stream".to_owned(),
        Some((name, user)) => format!("stream {name} of user {user}"),
    };
    let fsync = match shown.ignore_fsync {
        true => ", which ignores fsync",
        false => "",
    };
    text::print(&format!(
        "process {} is in {stream}{fsync}: {}",
        shown.pid,
        reason(&shown.because)
    ))
}

/// The server's reason, in words.
fn reason(because: &str) -> String {
    match because.split_once(' ') {
        Some(("ancestor", pid)) => format!("it started below process {pid}, whose stream was set"),
        Some(("cgroup", path)) => format!("there is a rule for cgroup {path}"),
        Some(("directory", inode)) => {
            format!("it changed something below the directory with inode {inode}, which has a rule")
        }
        None if because == "process" => "it was set for the process".to_owned(),
        None if because == "environment" => "its environment names it".to_owned(),
        None if because == "default" => "nothing puts it into another one".to_owned(),
        _ => because.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_that_is_not_known_is_shown_as_it_is() {
        assert_eq!(reason("process"), "it was set for the process");
        assert!(reason("ancestor 7").contains("process 7,"));
        for other in ["", "moon phase", "new"] {
            assert_eq!(reason(other), other);
        }
    }

    #[test]
    fn numbers_are_right_aligned_in_their_column() {
        let rows = [["a", "1"], ["long", "1000"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(columns(&rows, &[1]), "  a        1\n  long  1000");
        assert_eq!(columns(&[], &[]), "");
    }
}
