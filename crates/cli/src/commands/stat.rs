//! `steadfast stat`: live counters of a mounted volume, or of a server over NFS.

#[cfg(feature = "nfs")]
mod server;
#[cfg(not(feature = "nfs"))]
#[path = "stat/without_server.rs"]
mod server;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use steadfast_fuse::mountinfo::MountEntry;

use crate::commands::sync;
use crate::failure::Failure;
use crate::{size, text};
use server::Client;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print it as JSON (with --watch, one object per line)
    #[arg(long)]
    json: bool,
    /// Print the changes every SECONDS [default: 1], until interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
          value_parser = clap::value_parser!(u64).range(1..=86400))]
    watch: Option<u64>,
    /// Stop after printing this many times
    #[arg(long, value_name = "TIMES", requires = "watch")]
    count: Option<u64>,
    /// Any file or directory of the mounted volume, or the socket that 'steadfast serve nfs' names
    #[arg(value_name = "DIR")]
    path: PathBuf,
}

/// The server to ask.
enum Source {
    Mount(MountEntry),
    /// The control socket of a server.
    Socket(PathBuf),
}

impl Source {
    fn of(path: &Path) -> Result<Source, Failure> {
        use std::os::unix::fs::FileTypeExt;
        match std::fs::metadata(path) {
            Ok(found) if found.file_type().is_socket() => Ok(Source::Socket(path.to_owned())),
            _ => sync::mount_of(path).map(Source::Mount),
        }
    }
}

/// Counters at one moment.
struct Counters {
    at: Instant,
    values: Vec<(String, u64)>,
    /// Requests of each client, for a server.
    clients: Vec<Client>,
}

impl Counters {
    fn of(source: &Source, path: &Path) -> Result<Counters, Failure> {
        if let Source::Socket(path) = source {
            let (values, clients) = server::counters(path)?;
            return Ok(Counters {
                at: Instant::now(),
                values,
                clients,
            });
        }
        let values =
            of_mount(path).map_err(|e| Failure::at(path, format!("reading the counters: {e}")))?;
        Ok(Counters {
            at: Instant::now(),
            values,
            clients: Vec::new(),
        })
    }

    fn get(&self, name: &str) -> u64 {
        let mut values = self.values.iter();
        values
            .find(|(n, _)| n == name)
            .map_or(0, |(_, value)| *value)
    }

    /// Counts since `before`; levels as they are now.
    fn since(&self, before: &Counters) -> Vec<(String, u64)> {
        let values = self.values.iter();
        values
            .map(|(name, value)| match is_level(name) {
                true => (name.clone(), *value),
                false => (name.clone(), value.saturating_sub(before.get(name))),
            })
            .collect()
    }
}

/// The counters of the mount at (or above) a path.
pub(crate) fn of_mount(path: &Path) -> std::io::Result<Vec<(String, u64)>> {
    let mut values = steadfast_fuse::stats(path)?;
    // A volume that was shut down reports no space.
    if let Ok(space) = rustix::fs::statvfs(path) {
        values.push(("volume_bytes_now".into(), space.f_blocks * space.f_frsize));
        values.push(("free_bytes_now".into(), space.f_bfree * space.f_frsize));
    }
    Ok(values)
}

/// The trouble of a volume, if there is any. A server over NFS counts its failed volumes.
fn trouble(source: &Source, values: &[(String, u64)]) -> Option<String> {
    let now = |wanted: &str| {
        values
            .iter()
            .any(|(name, value)| name == wanted && *value > 0)
    };
    match source {
        Source::Mount(mount) => match steadfast_fuse::health(&mount.mount_point) {
            Ok(health) => health.failed,
            // It is gone, or of another version.
            Err(_) => now("failed_now").then(|| "it has failed".to_owned()),
        },
        Source::Socket(_) => {
            now("failed_now").then(|| "a volume has failed; the server's log says why".to_owned())
        }
    }
}

/// Whether a counter goes up and down.
fn is_level(name: &str) -> bool {
    name.ends_with("_now")
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let source = Source::of(&args.path)?;
    let first = Counters::of(&source, &args.path)?;
    let Some(seconds) = args.watch else {
        if args.json {
            let mut object = object(&source, &first.values);
            if matches!(source, Source::Socket(_)) {
                let clients = first.clients.iter().map(Client::object);
                object.insert("clients".into(), clients.collect());
            }
            text::print_json(&object)?;
        } else {
            let mut text = lines(&source, &first.values, None);
            for client in &first.clients {
                text.push_str(&client.line());
            }
            text::print(&text)?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let mut before = first;
    let mut times = 0;
    while args.count.is_none_or(|count| times < count) {
        thread::sleep(Duration::from_secs(seconds));
        let now = Counters::of(&source, &args.path)?;
        let elapsed = now.at.duration_since(before.at).as_secs_f64();
        let changes = now.since(&before);
        if args.json {
            let mut object = object(&source, &changes);
            object.insert("seconds".into(), elapsed.into());
            text::print_json_line(&object)?;
        } else {
            text::print(&lines(&source, &changes, Some(elapsed)))?;
        }
        before = now;
        times += 1;
    }
    Ok(ExitCode::SUCCESS)
}

fn object(source: &Source, values: &[(String, u64)]) -> Map<String, Value> {
    let mut object = Map::new();
    let path = |path: &Path| Value::from(path.to_string_lossy());
    match source {
        Source::Mount(mount) => {
            object.insert("image".into(), path(&mount.source));
            object.insert("mounted_at".into(), path(&mount.mount_point));
        }
        Source::Socket(socket) => drop(object.insert("socket".into(), path(socket))),
    }
    object.insert("failed".into(), trouble(source, values).into());
    let values = values.iter();
    object.extend(values.map(|(name, value)| (name.clone(), Value::from(*value))));
    object
}

/// Lines of text: values that are not zero, per second if a time is given.
fn lines(source: &Source, values: &[(String, u64)], seconds: Option<f64>) -> String {
    let mut lines = vec![match (seconds, source) {
        (None, Source::Mount(mount)) => format!(
            "{} at {}, since the mount:",
            mount.source.display(),
            mount.mount_point.display()
        ),
        (None, Source::Socket(path)) => {
            format!("the server at {}, since its start:", path.display())
        }
        (Some(seconds), _) => format!("in {seconds:.1} s:"),
    }];
    if let Some(why) = trouble(source, values) {
        lines.push(format!("  FAILED: {why}"));
    }
    for (name, value) in values.iter().filter(|(_, value)| *value > 0) {
        let shown = match name.contains("bytes") {
            true => size::show(*value),
            false => value.to_string(),
        };
        let rate = match seconds {
            Some(seconds) if !is_level(name) && seconds > 0.0 => {
                let rate = *value as f64 / seconds;
                match name.contains("bytes") {
                    true => format!("  {}/s", size::show(rate as u64)),
                    false => format!("  {rate:.1}/s"),
                }
            }
            _ => String::new(),
        };
        let label = name.trim_end_matches("_now").replace('_', " ");
        lines.push(format!("  {label:<26} {shown:>12}{rate}"));
    }
    lines.join("\n")
}
