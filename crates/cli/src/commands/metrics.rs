//! `steadfast metrics`: the counters of mounted volumes in the text format of Prometheus, once or over HTTP.
//!
//! The exporter is a process of its own. It finds the mounts anew for each scrape, so a mount whose server is gone
//! still has a sample (`steadfast_mount_up 0`). A mount that does not answer delays a scrape by its time limit at
//! most. Servers over NFS export themselves (`serve nfs --metrics`), with the same families for their volumes.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use steadfast_fuse::mountinfo::{self, MountEntry};
use steadfast_vfs::metrics::{Kind, Metrics};

use crate::commands::stat;
use crate::commands::sync::mount_of;
use crate::failure::{Failure, notice};
use crate::text;

/// Time limit of a client's request, and again of its answer.
const CLIENT_TIME: Duration = Duration::from_secs(2);
/// Time limit of the mounts for one scrape.
const SCRAPE_TIME: Duration = Duration::from_secs(4);
/// Longest request.
const REQUEST_BYTES_MAX: usize = 8 << 10;

const UP: (&str, Kind, &str) = (
    "steadfast_mount_up",
    Kind::Gauge,
    "Whether the server of a mount answers",
);
const SHUT_DOWN: (&str, Kind, &str) = (
    "steadfast_mount_shut_down",
    Kind::Gauge,
    "Whether the mount was shut down on purpose",
);
const REQUESTS: (&str, Kind, &str) = (
    "steadfast_fuse_requests_total",
    Kind::Counter,
    "Requests of the kernel, by kind",
);
const BYTES_READ: (&str, Kind, &str) = (
    "steadfast_fuse_read_bytes_total",
    Kind::Counter,
    "Bytes of answers to reads",
);
const BYTES_WRITTEN: (&str, Kind, &str) = (
    "steadfast_fuse_written_bytes_total",
    Kind::Counter,
    "Bytes that came with writes",
);
const BYTES_WRITTEN_BACK: (&str, Kind, &str) = (
    "steadfast_fuse_written_back_bytes_total",
    Kind::Counter,
    "Bytes of those writes that the kernel's page cache sent",
);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Answer GET /metrics at this address of this host, such as 127.0.0.1:9050, until a signal comes
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Directories of mounted volumes [default: all Steadfast mounts, found anew each time]
    #[arg(value_name = "DIR")]
    dirs: Vec<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    // Wrong names fail at once.
    let chosen: Vec<MountEntry> =
        (args.dirs.iter().map(|dir| mount_of(dir))).collect::<Result<_, _>>()?;
    let wanted = move || match chosen.is_empty() {
        true => mounts(),
        false => Ok(chosen.clone()),
    };
    let Some(address) = args.listen else {
        text::print(text_of(wanted()?).trim_end())?;
        return Ok(ExitCode::SUCCESS);
    };
    if !address.ip().is_loopback() {
        return Err(Failure::usage(format!(
            "--listen {address}: metrics are offered to this host alone: take an address such as 127.0.0.1:9050"
        )));
    }
    let refused = |e: std::io::Error| Failure::new(format!("listening at {address}: {e}"));
    let listener = TcpListener::bind(address).map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    text::print(&format!("metrics at http://{address}/metrics"))?;
    crate::commands::serve::tell_service_manager();
    for client in listener.incoming() {
        // A client that sends or takes nothing loses its answer, and delays others by its time limit at most.
        if let Err(e) = client.and_then(|client| answer(&client, &wanted))
            && !matches!(
                e.kind(),
                ErrorKind::TimedOut | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
            )
        {
            notice(&format!("metrics: {e}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The mounts of volumes, without disks that are served as a file.
fn mounts() -> Result<Vec<MountEntry>, Failure> {
    let mounts = mountinfo::mounts().map_err(|e| Failure::new(format!("list of mounts: {e}")))?;
    Ok(mounts.into_iter().filter(MountEntry::is_ours).collect())
}

/// Counters of a mount; None if it gave none.
type Said = Option<Vec<(String, u64)>>;

/// The samples of all mounts.
fn text_of(mounts: Vec<MountEntry>) -> String {
    let until = Instant::now() + SCRAPE_TIME;
    // All are asked at once; one that hangs occupies its thread, and counts as down.
    let asked: Vec<(MountEntry, Receiver<Said>)> = mounts
        .into_iter()
        .map(|mount| {
            let (tell, told) = channel();
            let point = mount.mount_point.clone();
            let spawned = std::thread::Builder::new()
                .name("scrape".to_owned())
                .spawn(move || {
                    let _ = tell.send(stat::of_mount(&point).ok());
                });
            // Without a thread nothing arrives.
            drop(spawned);
            (mount, told)
        })
        .collect();
    let mut text = Metrics::default();
    for (mount, told) in asked {
        // A mount that has not answered in time has no counters.
        let left = until.saturating_duration_since(Instant::now());
        let said = told.recv_timeout(left).unwrap_or_default();
        add(&mut text, &mount, said);
    }
    text.text()
}

fn add(text: &mut Metrics, mount: &MountEntry, said: Said) {
    let shown = |path: &Path| path.to_string_lossy().into_owned();
    let (volume, point) = (shown(&mount.source), shown(&mount.mount_point));
    let labels = [("volume", volume.as_str()), ("mountpoint", point.as_str())];
    text.add(UP, &labels, u64::from(said.is_some()));
    let mut of_volume = Vec::new();
    for (name, value) in said.iter().flatten() {
        match name.as_str() {
            "shut_down_now" => text.add(SHUT_DOWN, &labels, *value),
            "bytes_read" => text.add(BYTES_READ, &labels, *value),
            "bytes_written_back" => text.add(BYTES_WRITTEN_BACK, &labels, *value),
            "bytes_written" => text.add(BYTES_WRITTEN, &labels, *value),
            "volume_bytes_now" => of_volume.push(("size_bytes_now", *value)),
            name => match name.strip_prefix("requests_") {
                Some(kind) => {
                    let labels = [labels[0], labels[1], ("request", kind)];
                    text.add(REQUESTS, &labels, *value);
                }
                None => of_volume.push((name, *value)),
            },
        }
    }
    text.volume(&labels, of_volume, None);
}

/// Answers one request of HTTP within the client's time.
fn answer(
    mut client: &TcpStream,
    wanted: &dyn Fn() -> Result<Vec<MountEntry>, Failure>,
) -> std::io::Result<()> {
    let left = |since: Instant| {
        let left = (since + CLIENT_TIME).saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left).ok_or(ErrorKind::TimedOut)
    };
    let begun = Instant::now();
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.windows(4).any(|w| w == b"\r\n\r\n") {
        client.set_read_timeout(Some(left(begun)?))?;
        let len = client.read(&mut buffer)?;
        if len == 0 || request.len() + len > REQUEST_BYTES_MAX {
            return Ok(());
        }
        request.extend_from_slice(&buffer[..len]);
    }
    let line = request
        .split(|byte| *byte == b'\r')
        .next()
        .unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (status, body) = match (words.next(), words.next()) {
        (Some(b"GET"), Some(b"/metrics")) => match wanted() {
            Ok(mounts) => ("200 OK", text_of(mounts)),
            Err(failure) => (
                "500 Internal Server Error",
                format!("{}\n", failure.message),
            ),
        },
        (Some(b"GET"), _) => ("404 Not Found", "see /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "GET, nothing else\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let answer = head + &body;
    let begun = Instant::now();
    let mut rest = answer.as_bytes();
    while !rest.is_empty() {
        client.set_write_timeout(Some(left(begun)?))?;
        let len = client.write(rest)?;
        rest = &rest[len..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_whose_server_is_gone_is_down_and_others_have_all_their_samples() {
        let mount = |point: &str| MountEntry {
            id: 1,
            device: "0:50".to_owned(),
            mount_point: point.into(),
            fs_type: mountinfo::FS_TYPE.to_owned(),
            source: "/srv/a \"b\".img".into(),
            read_only: false,
        };
        let mut text = Metrics::default();
        let said = [
            ("shut_down_now", 0),
            ("failed_now", 1),
            ("commits", 7),
            ("requests_read", 9),
            ("bytes_read", 4096),
        ];
        let said = said.map(|(name, value)| (name.to_owned(), value)).to_vec();
        add(&mut text, &mount("/a"), Some(said));
        add(&mut text, &mount("/b"), None);
        let text = text.text();
        for line in [
            "# TYPE steadfast_mount_up gauge\nsteadfast_mount_up{volume=\"/srv/a \\\"b\\\".img\",mountpoint=\"/a\"} 1\n\
             steadfast_mount_up{volume=\"/srv/a \\\"b\\\".img\",mountpoint=\"/b\"} 0\n",
            "steadfast_volume_failed{volume=\"/srv/a \\\"b\\\".img\",mountpoint=\"/a\"} 1\n",
            "# TYPE steadfast_volume_commits_total counter\n",
            "mountpoint=\"/a\",request=\"read\"} 9\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    }
}
