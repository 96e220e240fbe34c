//! Small files, and metadata: one call at a time per client, as an application waits for each.

use std::time::Instant;

use nfs3_types::nfs3::{
    GETATTR3args, LOOKUP3args, Nfs3Option, READDIR3args, REMOVE3args, RENAME3args, SETATTR3args,
    cookieverf3, nfs_fh3, stable_how,
};

use super::{Run, Work};
use crate::data;
use crate::figures::Figures;
use steadfast_nfs_client::calls::{entry, mode, write_args};
use steadfast_nfs_client::client::{Client, check_stable};
use steadfast_nfs_client::{Failure, wrong};

pub(crate) const SMALL_FILE_BYTES: usize = 100;
/// Removed files per file that is read back first.
const READ_BACK_EVERY: u64 = 64;
/// Calls of one round of the metadata loop.
const METADATA_CALLS: u64 = 7;

/// Prefixes of the names that are made here.
const PREFIXES: [&str; 3] = ["small-", "meta-", "moved-"];

struct State {
    client: Client,
    dir: nfs_fh3,
    number: u32,
    count: u64,
}

impl Run {
    fn state(&self, number: u32, count: u64) -> Result<State, Failure> {
        let (client, dir) = self.join(number)?;
        Ok(State {
            client,
            dir,
            number,
            count: self.share(number, count),
        })
    }
}

/// The load has removed everything that it made.
fn left_nothing(mut state: State) -> Result<(), Failure> {
    let mut names = state.client.names(&state.dir)?.into_iter();
    match names.find(|name| PREFIXES.iter().any(|prefix| name.starts_with(prefix))) {
        None => Ok(()),
        Some(name) => wrong(format!("{name} was removed, and is listed")),
    }
}

/// CREATE, WRITE of 100 bytes, REMOVE. Each file is durable before it goes: the WRITE is FILE_SYNC, or UNSTABLE and
/// followed by a COMMIT. An operation is a file.
pub(crate) fn smallfile(run: &Run, count: u64, commit: bool) -> Result<Figures, Failure> {
    run.side_by_side(
        |number| run.state(number, count),
        |state, work| {
            let mut bytes = [0; SMALL_FILE_BYTES];
            for i in 0..state.count {
                let tag = data::tag(&[u64::from(state.number), i]);
                data::fill(tag, 0, &mut bytes);
                let start = Instant::now();
                one_small_file(
                    state,
                    &format!("small-{i:08}"),
                    &bytes,
                    commit,
                    i % READ_BACK_EVERY == 0,
                )?;
                work.operation(start.elapsed());
            }
            Ok(())
        },
        left_nothing,
    )
}

fn one_small_file(
    state: &mut State,
    name: &str,
    bytes: &[u8],
    commit: bool,
    read_back: bool,
) -> Result<(), Failure> {
    let State { client, dir, .. } = state;
    let file = client.create(dir, name)?;
    if commit {
        // A server that was started in between has lost the write: once more.
        loop {
            let args = write_args(&file, 0, stable_how::UNSTABLE, bytes);
            let done = client.expect(&args, "WRITE")?;
            if done.count as usize != bytes.len() {
                return wrong(format!("WRITE: {} of {} bytes", done.count, bytes.len()));
            }
            if client.commit(&file)? == done.verf {
                break;
            }
        }
    } else {
        let args = write_args(&file, 0, stable_how::FILE_SYNC, bytes);
        check_stable(&client.expect(&args, "WRITE")?, bytes.len())?;
    }
    if read_back && client.read(&file, 0, 1024, bytes.len() as u64)? != bytes {
        return wrong(format!("{name}: other bytes than were written"));
    }
    client.remove(dir, name)
}

/// Rounds of CREATE, LOOKUP, GETATTR, SETATTR (mode), RENAME, READDIR, REMOVE in the client's directory, which holds hardly
/// anything else. An operation is a call; `count` is rounded to whole rounds.
pub(crate) fn metadata(run: &Run, count: u64) -> Result<Figures, Failure> {
    run.side_by_side(
        |number| run.state(number, count.div_ceil(METADATA_CALLS)),
        |state, work| {
            for i in 0..state.count {
                metadata_round(state, i, work)?;
            }
            Ok(())
        },
        left_nothing,
    )
}

fn metadata_round(state: &mut State, i: u64, work: &mut Work) -> Result<(), Failure> {
    let State { client, dir, .. } = state;
    let (name, renamed) = (format!("meta-{i:08}"), format!("moved-{i:08}"));
    let mut start = Instant::now();
    let mut done = || {
        work.operation(start.elapsed());
        start = Instant::now();
    };
    let file = client.create(dir, &name)?;
    done();
    let found = client.expect(
        &LOOKUP3args {
            what: entry(dir, &name),
        },
        "LOOKUP",
    )?;
    done();
    let args = GETATTR3args {
        object: found.object,
    };
    let attributes = client.expect(&args, "GETATTR")?.obj_attributes;
    done();
    if attributes.mode & 0o777 != 0o644 || attributes.size != 0 || attributes.nlink != 1 {
        return wrong(format!(
            "GETATTR of a new file: mode {:o}, {} bytes, {} links",
            attributes.mode, attributes.size, attributes.nlink
        ));
    }
    let args = SETATTR3args {
        object: file,
        new_attributes: mode(0o600),
        guard: Nfs3Option::None,
    };
    let set = client.expect(&args, "SETATTR")?;
    done();
    if let Nfs3Option::Some(after) = set.obj_wcc.after
        && after.mode & 0o777 != 0o600
    {
        return wrong(format!("SETATTR to 600 leaves {:o}", after.mode));
    }
    let args = RENAME3args {
        from: entry(dir, &name),
        to: entry(dir, &renamed),
    };
    client.expect(&args, "RENAME")?;
    done();
    let args = READDIR3args {
        dir: dir.clone(),
        cookie: 0,
        cookieverf: cookieverf3::default(),
        count: 4096,
    };
    let listed = client.expect(&args, "READDIR")?;
    done();
    let mut names = listed
        .reply
        .entries
        .0
        .iter()
        .map(|entry| entry.name.as_ref());
    if !names.any(|n| n == renamed.as_bytes()) {
        return wrong(format!("READDIR does not list {renamed}"));
    }
    client.expect(
        &REMOVE3args {
            object: entry(dir, &renamed),
        },
        "REMOVE",
    )?;
    done();
    Ok(())
}
