//! `steadfast stream stats`: what each stream did since the mount, what it cost others, and which streams became one order.

use std::path::Path;

use serde_json::{Value, json};
use steadfast_stream::{Error, Merge, Partner, Stats};

use super::mounts::Target;
use super::show::{At, columns, heading, of_mount};
use crate::failure::Failure;
use crate::{size, text};

/// Prefix of the counters of merges since the mount, one for each cause.
const MERGES: &str = "stream_merges_";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show the last merges of two streams, with their causes; for root and the owner of the mount
    #[arg(long)]
    merges: bool,
    /// Print all of it as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: At,
}

pub(super) fn stats(args: &Args) -> Result<(), Failure> {
    let target = args.at.target()?;
    let mut streams = steadfast_stream::stats(&target.path)?;
    streams.sort_by_key(|stream| stream.stream.number);
    let total = merges_total(&target)?;
    if args.json {
        let merges = match steadfast_stream::merges(&target.path) {
            Ok(merges) => merges.iter().map(merge_object).collect(),
            Err(Error::NotPermitted { .. }) => Value::Null,
            Err(e) => return Err(e.into()),
        };
        let mut object = of_mount(&target);
        let list = streams.iter().map(|stream| object_of(stream, &streams));
        object.insert("streams".into(), list.collect());
        object.insert("merges_total".into(), total.into());
        object.insert("merges".into(), merges);
        return text::print_json(&object);
    }
    if args.merges {
        let merges = steadfast_stream::merges(&target.path)?;
        return text::print(&merge_lines(&target, total, &merges));
    }
    let mut rows = vec![
        [
            "STREAM",
            "OPERATIONS",
            "UNCOMMITTED",
            "COMMITS",
            "OWN",
            "FOR OTHERS",
            "WAITS",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    rows.extend(streams.iter().map(|stream| row(stream, &streams)));
    let lines = columns(&rows, &[1, 2, 3, 4, 5]);
    let merges = match total {
        0 => "no two streams became one order".to_owned(),
        1 => "one merge of two streams; --merges shows it".to_owned(),
        total => format!("{total} merges of two streams; --merges shows the last"),
    };
    text::print(&format!("{}\n{lines}\n  {merges}", heading(&target)))
}

fn merges_total(target: &Target) -> Result<u64, Failure> {
    let counters = steadfast_fuse::stats(&target.path)
        .map_err(|e| Failure::at(&target.path, format!("reading the counters: {e}")))?;
    let merges = counters.iter().filter(|(name, _)| name.starts_with(MERGES));
    Ok(merges.map(|(_, value)| value).sum())
}

/// A stream for people. Names are unique for a user; the user is shown unless it is root.
fn label(stream: &Partner) -> String {
    match (&stream.name, stream.number) {
        (Some((name, 0)), _) => name.clone(),
        (Some((name, user)), _) => format!("{name} (user {user})"),
        (None, 0) => "default".to_owned(),
        (None, number) => format!("ended ({number})"),
    }
}

fn partner(number: u32, streams: &[Stats]) -> Partner {
    let mut all = streams.iter().map(|stats| &stats.stream);
    match all.find(|stream| stream.number == number) {
        Some(stream) => stream.clone(),
        None => Partner { number, name: None },
    }
}

fn row(stats: &Stats, streams: &[Stats]) -> Vec<String> {
    let waits = stats.waited_for.iter().map(|(number, times)| {
        let other = label(&partner(*number, streams));
        format!("{times} for {other}")
    });
    let waits: Vec<String> = waits.collect();
    vec![
        label(&stats.stream),
        stats.operations.to_string(),
        stats.uncommitted.to_string(),
        stats.commits.to_string(),
        size::show(stats.own_bytes),
        size::show(stats.carried_bytes),
        match waits.is_empty() {
            true => "none".to_owned(),
            false => waits.join(", "),
        },
    ]
}

fn merge_lines(target: &Target, total: u64, merges: &[Merge]) -> String {
    if merges.is_empty() {
        return format!("{}\n  no two streams became one order", heading(target));
    }
    let mut rows = vec![["STREAM", "AND", "CAUSE", "AT"].map(str::to_owned).to_vec()];
    for merge in merges {
        rows.push(vec![
            label(&merge.streams[0]),
            label(&merge.streams[1]),
            merge.cause.clone(),
            match (&merge.path, merge.inode) {
                (Some(path), _) => printable(path),
                (None, Some(inode)) => format!("inode {inode}"),
                (None, None) => String::new(),
            },
        ]);
    }
    format!(
        "{}\n{}\n  the last {} of {total}, oldest first",
        heading(target),
        columns(&rows, &[]),
        merges.len()
    )
}

/// A path on one line, whatever its name is.
pub(super) fn printable(path: &Path) -> String {
    let text = path.to_string_lossy();
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() {
            true => line.extend(c.escape_default()),
            false => line.push(c),
        }
    }
    line
}

fn partner_object(stream: &Partner) -> Value {
    let (name, user) = stream.name.clone().unzip();
    json!({ "number": stream.number, "name": name, "user": user })
}

fn object_of(stats: &Stats, streams: &[Stats]) -> Value {
    let mut object = partner_object(&stats.stream);
    let waits = stats.waited_for.iter().map(|(number, times)| {
        let mut wait = partner_object(&partner(*number, streams));
        wait["times"] = (*times).into();
        wait
    });
    object["operations"] = stats.operations.into();
    object["uncommitted_now"] = stats.uncommitted.into();
    object["commits"] = stats.commits.into();
    object["own_bytes"] = stats.own_bytes.into();
    object["carried_bytes"] = stats.carried_bytes.into();
    object["waits"] = waits.collect();
    object
}

fn merge_object(merge: &Merge) -> Value {
    json!({
        "streams": merge.streams.iter().map(partner_object).collect::<Vec<_>>(),
        "cause": merge.cause,
        "inode": merge.inode,
        "path": merge.path.as_ref().map(|path| path.to_string_lossy()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(number: u32, name: &str, user: u32) -> Partner {
        Partner {
            number,
            name: Some((name.to_owned(), user)),
        }
    }

    #[test]
    fn a_wait_names_the_stream_that_was_waited_for() {
        let streams = [
            Stats {
                stream: named(1, "build", 0),
                operations: 7,
                own_bytes: 4096,
                waited_for: vec![(0, 2), (2, 1), (9, 1)],
                ..Stats::default()
            },
            Stats {
                stream: named(2, "mail", 1000),
                ..Stats::default()
            },
        ];
        let row = row(&streams[0], &streams);
        let waits = "2 for default, 1 for mail (user 1000), 1 for ended (9)";
        assert_eq!(row, ["build", "7", "0", "0", "4 KiB", "0 B", waits]);
        let object = object_of(&streams[0], &streams);
        assert_eq!(object["waits"][1]["name"], "mail");
        assert_eq!(object["waits"][2]["name"], Value::Null);
    }

    #[test]
    fn a_path_stays_on_its_line() {
        assert_eq!(
            printable(Path::new("/a\n\u{1b}[0m\u{e4}")),
            "/a\\n\\u{1b}[0m\u{e4}"
        );
    }
}
