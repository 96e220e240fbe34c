//! Options before the workload on the command line.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use steadfast_nfs_client::Failure;
use steadfast_nfs_client::client::{self, Export};
use steadfast_nfs_client::rpc::Target;

pub(crate) const USAGE: &str = "usage: nfs [OPTION...] WORKLOAD ARGUMENTS...
  workloads: smallfile COUNT, smallfile-commit COUNT, metadata COUNT, largefile MIB, overwrite MIB, read-sequential MIB,
    read-random MIB COUNT, lookup ENTRIES COUNT, idle COUNT, directory ENTRIES; crash SECONDS RECORD, verify RECORD; wait SECONDS
  --server ADDRESS   (127.0.0.1)
  --port P           of the NFS program; asked for at the server's port mapper if not given
  --mount-port P     of the MOUNT program, likewise
  --export PATH      (/)
  --clients N        a connection, a directory and a thread each (1)
  --window N         calls outstanding per client, where a workload has more than one (8)
  --server-pid PID   of a server on this machine: also print its processor time per operation
  --uid N, --gid N   who asks (0, 0)
  --any-port         do not come from a port below 1024; without privileges this is so anyway
  --timeout SECONDS  for a reply (60)
  --seed N           of the crash workload (1)
  --no-exclusive     the crash workload creates no file with EXCLUSIVE";

pub(crate) struct Options {
    server: IpAddr,
    port: Option<u16>,
    mount_port: Option<u16>,
    export: String,
    uid: u32,
    gid: u32,
    any_port: bool,
    timeout: Duration,
    pub(crate) clients: u32,
    pub(crate) window: usize,
    pub(crate) server_pid: Option<u32>,
    pub(crate) seed: u64,
    pub(crate) exclusive: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            server: Ipv4Addr::LOCALHOST.into(),
            port: None,
            mount_port: None,
            export: "/".to_owned(),
            uid: 0,
            gid: 0,
            any_port: !rustix::process::geteuid().is_root(),
            timeout: Duration::from_secs(60),
            clients: 1,
            window: 8,
            server_pid: None,
            seed: 1,
            exclusive: true,
        }
    }
}

impl Options {
    pub(crate) fn mount(&self) -> Result<Export, Failure> {
        let target = Target {
            address: SocketAddr::new(self.server, 0),
            uid: self.uid,
            gid: self.gid,
            reserved_port: !self.any_port,
            timeout: self.timeout,
        };
        client::mount(&target, self.port, self.mount_port, &self.export)
    }
}

/// The options, and the words after them.
pub(crate) fn parse<'a, 'b>(words: &'b [&'a str]) -> Result<(Options, &'b [&'a str]), String> {
    let mut options = Options::default();
    let mut rest = words;
    while let [option, others @ ..] = rest
        && option.starts_with("--")
    {
        rest = others;
        match *option {
            "--any-port" => {
                options.any_port = true;
                continue;
            }
            "--no-exclusive" => {
                options.exclusive = false;
                continue;
            }
            _ => {}
        }
        let [value, others @ ..] = rest else {
            return Err(format!("{option} needs a value, or is unknown\n{USAGE}"));
        };
        rest = others;
        match *option {
            "--server" => options.server = parsed(option, value)?,
            "--port" => options.port = Some(parsed(option, value)?),
            "--mount-port" => options.mount_port = Some(parsed(option, value)?),
            "--export" => options.export = (*value).to_owned(),
            "--clients" => options.clients = above_zero(option, value)?,
            "--window" => options.window = above_zero(option, value)? as usize,
            "--server-pid" => options.server_pid = Some(parsed(option, value)?),
            "--uid" => options.uid = parsed(option, value)?,
            "--gid" => options.gid = parsed(option, value)?,
            "--timeout" => {
                options.timeout = Duration::from_secs(u64::from(above_zero(option, value)?));
            }
            "--seed" => options.seed = parsed(option, value)?,
            _ => return Err(format!("unknown option '{option}'\n{USAGE}")),
        }
    }
    Ok((options, rest))
}

fn parsed<T: std::str::FromStr>(option: &str, value: &str) -> Result<T, String> {
    value
        .parse()
        .map_err(|_| format!("{option} does not take '{value}'"))
}

fn above_zero(option: &str, value: &str) -> Result<u32, String> {
    match parsed(option, value)? {
        0 => Err(format!("{option} needs a number above zero")),
        number => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn options_end_where_the_workload_begins() {
        let words = [
            "--clients",
            "10",
            "--any-port",
            "--port",
            "2049",
            "smallfile",
            "100",
        ];
        let (options, rest) = parse(&words).unwrap();
        assert_eq!(
            (options.clients, options.port, options.any_port),
            (10, Some(2049), true)
        );
        assert_eq!(rest, ["smallfile", "100"]);
    }

    #[test]
    fn unknown_options_and_bad_values_are_refused_by_name() {
        for (words, name) in [
            (&["--clients", "0", "x"][..], "--clients"),
            (&["--port", "70000", "x"], "70000"),
            (&["--speed", "9", "x"], "--speed"),
            (&["--seed"], "--seed"),
        ] {
            let error = parse(words).err().unwrap();
            assert!(error.contains(name), "{error}");
        }
    }
}
