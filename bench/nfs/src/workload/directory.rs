//! Directories of many entries: how LOOKUP and REMOVE behave as they grow.
//!
//! The mode of a file follows from its number: a LOOKUP that finds another file is seen by its attributes.

use std::time::Instant;

use nfs3_types::nfs3::{LOOKUP3args, Nfs3Option, REMOVE3args, nfs_fh3, nfsstat3};

use super::{Run, Work, pipelined};
use crate::data::{self, Random};
use crate::figures::{Figures, processor_time};
use steadfast_nfs_client::calls::{entry, unchecked};
use steadfast_nfs_client::client::Client;
use steadfast_nfs_client::{Failure, wrong};

/// The parts that a curve is shown in.
const TENTHS: u64 = 10;

fn name_of(i: u64) -> String {
    format!("entry-{i:08}")
}

fn mode_of(i: u64) -> u32 {
    (data::tag(&[i]) & 0o777) as u32
}

/// The shared directory of `entries` files, made if the last of them is not there.
fn filled(run: &Run, entries: u64) -> Result<nfs_fh3, Failure> {
    let mut client = Client::connect(&run.export.target)?;
    let dir = client.directory(&run.export.root, &format!("lookup-{entries}"))?;
    let last = name_of(entries - 1);
    match client.call(&LOOKUP3args {
        what: entry(&dir, &last),
    })? {
        Ok(_) => {}
        Err(nfsstat3::NFS3ERR_NOENT) => {
            create(run, &mut client, &dir, 0..entries, &mut Work::default())?;
        }
        Err(status) => {
            return Err(Failure::Status {
                what: format!("LOOKUP {last}"),
                status,
            });
        }
    }
    Ok(dir)
}

/// `count` LOOKUPs of names in random order, one at a time per client, in one directory of `entries`.
pub(crate) fn lookup(run: &Run, entries: u64, count: u64) -> Result<Figures, Failure> {
    let dir = filled(run, entries)?;
    run.side_by_side(
        |number| {
            let mut client = Client::connect(&run.export.target)?;
            // The connection is up, and the directory known.
            client.attributes(&dir)?;
            Ok((
                client,
                Random::new(u64::from(number)),
                run.share(number, count),
            ))
        },
        |(client, random, count), work| {
            for _ in 0..*count {
                let i = random.below(entries);
                let name = name_of(i);
                let start = Instant::now();
                let found = client.expect(
                    &LOOKUP3args {
                        what: entry(&dir, &name),
                    },
                    &name,
                )?;
                work.operation(start.elapsed());
                check_found(i, &found.obj_attributes)?;
            }
            Ok(())
        },
        |_| Ok(()),
    )
}

fn check_found(i: u64, attributes: &nfs3_types::nfs3::post_op_attr) -> Result<(), Failure> {
    match attributes {
        Nfs3Option::Some(found) if found.mode & 0o777 != mode_of(i) => wrong(format!(
            "LOOKUP of {} finds a file of mode {:o} instead of {:o}",
            name_of(i),
            found.mode & 0o777,
            mode_of(i)
        )),
        _ => Ok(()),
    }
}

fn create(
    run: &Run,
    client: &mut Client,
    dir: &nfs_fh3,
    range: std::ops::Range<u64>,
    work: &mut Work,
) -> Result<(), Failure> {
    // The names have to live as long as the calls.
    let names: Vec<String> = range.clone().map(name_of).collect();
    let mut calls = range.zip(&names);
    pipelined(
        client,
        run.window,
        || {
            calls
                .next()
                .map(|(i, name)| (unchecked(dir, name, mode_of(i)), ()))
        },
        |_, (), latency| {
            work.operation(latency);
            Ok(())
        },
    )
}

/// Creates `entries` files in one directory, looks each up in random order, lists the directory, removes all in random
/// order; `run.window` calls outstanding. The lines are the figures of each tenth of the entries, and of the listing.
pub(crate) fn directory(run: &Run, entries: u64) -> Result<String, Failure> {
    let mut client = Client::connect(&run.export.target)?;
    let dir = client.directory(&run.export.root, "many")?;
    let mut order: Vec<u64> = (0..entries).collect();
    shuffle(&mut order);
    let mut out = String::new();
    let tenth = |t: u64| (entries * t / TENTHS)..(entries * (t + 1) / TENTHS);
    for t in 0..TENTHS {
        let part = measured(run, |work| create(run, &mut client, &dir, tenth(t), work))?;
        out += &part.lines(&format!("create-{}-", t + 1));
    }
    for t in 0..TENTHS {
        let range = tenth(t);
        let part = &order[range.start as usize..range.end as usize];
        let names: Vec<String> = part.iter().map(|i| name_of(*i)).collect();
        let figures = measured(run, |work| {
            let mut calls = part.iter().zip(&names);
            pipelined(
                &mut client,
                run.window,
                || {
                    let (i, name) = calls.next()?;
                    Some((
                        LOOKUP3args {
                            what: entry(&dir, name),
                        },
                        *i,
                    ))
                },
                |found, i, latency| {
                    work.operation(latency);
                    check_found(i, &found.obj_attributes)
                },
            )
        })?;
        out += &figures.lines(&format!("lookup-{}-", t + 1));
    }
    let figures = measured(run, |work| {
        let mut names = client.names(&dir)?;
        work.operations = names.len() as u64;
        names.sort_unstable();
        if names.len() as u64 != entries || !names.iter().zip(0..).all(|(n, i)| *n == name_of(i)) {
            return wrong(format!(
                "READDIR lists {} of {entries} names, or others",
                names.len()
            ));
        }
        Ok(())
    })?;
    out += &figures.lines("list-");
    for t in 0..TENTHS {
        let range = tenth(t);
        let names: Vec<String> = order[range.start as usize..range.end as usize]
            .iter()
            .map(|i| name_of(*i))
            .collect();
        let figures = measured(run, |work| {
            let mut calls = names.iter();
            pipelined(
                &mut client,
                run.window,
                || {
                    calls.next().map(|name| {
                        (
                            REMOVE3args {
                                object: entry(&dir, name),
                            },
                            (),
                        )
                    })
                },
                |_, (), latency| {
                    work.operation(latency);
                    Ok(())
                },
            )
        })?;
        out += &figures.lines(&format!("remove-{}-", t + 1));
    }
    match client.names(&dir)?.len() {
        0 => Ok(out),
        left => wrong(format!("{left} names are left after all were removed")),
    }
}

/// The same order in every run.
fn shuffle(order: &mut [u64]) {
    let mut random = Random::new(1);
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i as u64 + 1) as usize);
    }
}

fn measured(
    run: &Run,
    work: impl FnOnce(&mut Work) -> Result<(), Failure>,
) -> Result<Figures, Failure> {
    let cpu = || {
        run.server_pid
            .map(processor_time)
            .transpose()
            .map_err(Failure::Wrong)
    };
    let before = cpu()?;
    let start = Instant::now();
    let mut amount = Work::default();
    work(&mut amount)?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(Figures {
        seconds,
        operations: amount.operations,
        bytes: amount.bytes,
        latencies: amount.latencies,
        server_cpu: before.zip(cpu()?).map(|(before, after)| after - before),
    })
}
