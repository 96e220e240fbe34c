//! The workloads. Each runs once, with any number of clients: a thread, a connection and a directory each. Preparations
//! come before the clock starts; replies are compared with the expected ones, as part of the run where that costs little,
//! after it otherwise.

mod directory;
mod idle;
mod large;
mod read;
mod small;

pub(crate) use directory::{directory, lookup};
pub(crate) use idle::idle;
pub(crate) use large::largefile;
pub(crate) use read::{random, sequential};
pub(crate) use small::{metadata, smallfile};

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use nfs3_types::nfs3::nfs_fh3;

use crate::figures::{Figures, Latencies, processor_time};
use steadfast_nfs_client::Failure;
use steadfast_nfs_client::calls::{Call, decode};
use steadfast_nfs_client::client::{Client, Export, succeeded};

/// Settings of all workloads.
pub(crate) struct Run {
    pub(crate) export: Export,
    pub(crate) clients: u32,
    /// The server's process, if its processor time is wanted.
    pub(crate) server_pid: Option<u32>,
    /// Calls that a client has outstanding, where a workload sends more than one at a time.
    pub(crate) window: usize,
}

impl Run {
    /// The part of `count` that a client does.
    fn share(&self, client: u32, count: u64) -> u64 {
        let clients = u64::from(self.clients);
        count / clients + u64::from(u64::from(client) < count % clients)
    }

    /// A connection, and the client's directory.
    fn join(&self, client: u32) -> Result<(Client, nfs_fh3), Failure> {
        let mut connection = Client::connect(&self.export.target)?;
        let dir = connection.directory(&self.export.root, &format!("client-{client}"))?;
        Ok((connection, dir))
    }

    fn cpu(&self) -> Result<Option<Duration>, Failure> {
        self.server_pid
            .map(|pid| processor_time(pid).map_err(Failure::Wrong))
            .transpose()
    }

    /// Runs `work` on every client at once, each with its result of `prepare`. The clock runs from the moment when all
    /// are prepared to the moment when the last is done; `check` comes after it.
    fn side_by_side<S: Send>(
        &self,
        prepare: impl Fn(u32) -> Result<S, Failure> + Sync,
        work: impl Fn(&mut S, &mut Work) -> Result<(), Failure> + Sync,
        check: impl Fn(S) -> Result<(), Failure> + Sync,
    ) -> Result<Figures, Failure> {
        let barrier = Barrier::new(self.clients as usize + 1);
        let done = Barrier::new(self.clients as usize + 1);
        let mut figures = Figures {
            seconds: 0.0,
            operations: 0,
            bytes: 0,
            latencies: Latencies::default(),
            server_cpu: None,
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.clients)
                .map(|client| {
                    let (prepare, work, check) = (&prepare, &work, &check);
                    let (barrier, done) = (&barrier, &done);
                    scope.spawn(move || {
                        let mut amount = Work::default();
                        let prepared = prepare(client);
                        barrier.wait();
                        let worked = prepared.and_then(|mut state| {
                            work(&mut state, &mut amount)?;
                            Ok(state)
                        });
                        done.wait();
                        check(worked?)?;
                        Ok(amount)
                    })
                })
                .collect();
            barrier.wait();
            let cpu = self.cpu();
            let start = Instant::now();
            done.wait();
            figures.seconds = start.elapsed().as_secs_f64();
            let (before, after) = (cpu?, self.cpu()?);
            figures.server_cpu = before.zip(after).map(|(before, after)| after - before);
            for (client, thread) in threads.into_iter().enumerate() {
                let amount = thread
                    .join()
                    .map_err(|_| Failure::Wrong("a client panicked".to_owned()))?
                    .map_err(|e: Failure| e.of_client(client))?;
                figures.operations += amount.operations;
                figures.bytes += amount.bytes;
                figures.latencies.merge(amount.latencies);
            }
            Ok(figures)
        })
    }
}

/// Work that a client has done.
#[derive(Default)]
struct Work {
    operations: u64,
    bytes: u64,
    latencies: Latencies,
}

impl Work {
    fn operation(&mut self, latency: Duration) {
        self.operations += 1;
        self.latencies.add(latency);
    }
}

/// Sends calls with up to `window` of them outstanding. `next` makes a call and a note of its purpose, or None at the
/// end; `done` gets each result with its note.
fn pipelined<C: Call, N>(
    client: &mut Client,
    window: usize,
    mut next: impl FnMut() -> Option<(C, N)>,
    mut done: impl FnMut(C::Ok, N, Duration) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut notes = BTreeMap::new();
    let mut more = true;
    loop {
        while more && notes.len() < window {
            match next() {
                Some((args, note)) => {
                    notes.insert(client.submit(&args)?, note);
                }
                None => more = false,
            }
        }
        if notes.is_empty() {
            return Ok(());
        }
        let what = format!("{:?}", C::PROCEDURE);
        let reply = client.receive().map_err(|e| e.during(&what))?;
        let Some(note) = notes.remove(&reply.xid) else {
            return Err(Failure::Protocol(format!("{what}: a reply to no call")));
        };
        done(
            succeeded(decode::<C>(&reply.body)?, &what)?,
            note,
            reply.latency,
        )?;
    }
}

#[cfg(test)]
mod tests;
