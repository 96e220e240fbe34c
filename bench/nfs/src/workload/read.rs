//! Reads of a file of the client's own, sequential and random, every byte compared.
//!
//! The file is made if it is not there with its size, so that a server can be started anew between making and reading.

use nfs3_types::nfs3::nfs_fh3;

use super::large::{PIECE_BYTES_MAX, write_file};
use super::{Run, pipelined};
use crate::data::{self, Random};
use crate::figures::Figures;
use steadfast_nfs_client::calls::read_args;
use steadfast_nfs_client::client::{Client, check_read};
use steadfast_nfs_client::{Failure, wrong};

const RANDOM_BYTES: u32 = 4096;

struct State {
    client: Client,
    file: nfs_fh3,
    tag: u64,
    size: u64,
    number: u32,
}

impl Run {
    /// The client's file, with `mib` mebibytes over all clients.
    fn file_to_read(&self, number: u32, mib: u64) -> Result<State, Failure> {
        let (mut client, dir) = self.join(number)?;
        let size = self.share(number, mib) << 20;
        let tag = data::tag(&[u64::from(number), 100]);
        let name = format!("read-{size}");
        let file = client.create(&dir, &name)?;
        if client.attributes(&file)?.size != size {
            let piece = self.export.write_max.min(PIECE_BYTES_MAX);
            write_file(&mut client, &file, tag, size, piece, self.window, |_| ())?;
        }
        Ok(State {
            client,
            file,
            tag,
            size,
            number,
        })
    }
}

/// Reads the clients' files from the beginning to the end in pieces of 64 KiB.
pub(crate) fn sequential(run: &Run, mib: u64) -> Result<Figures, Failure> {
    let piece = run.export.read_max.min(PIECE_BYTES_MAX);
    run.side_by_side(
        |number| run.file_to_read(number, mib),
        |state, work| {
            let State {
                client,
                file,
                tag,
                size,
                ..
            } = state;
            let mut offsets = (0..*size).step_by(piece as usize);
            pipelined(
                client,
                run.window,
                || {
                    offsets
                        .next()
                        .map(|offset| (read_args(file, offset, piece), offset))
                },
                |read, offset, latency| {
                    check_read(&read, offset, piece, *size)?;
                    compare(*tag, offset, read.data.as_ref())?;
                    work.bytes += read.data.len() as u64;
                    work.operation(latency);
                    Ok(())
                },
            )
        },
        |_| Ok(()),
    )
}

/// `count` reads of 4 KiB anywhere in the clients' files, one at a time per client.
pub(crate) fn random(run: &Run, mib: u64, count: u64) -> Result<Figures, Failure> {
    run.side_by_side(
        |number| run.file_to_read(number, mib),
        |state, work| {
            let State {
                client,
                file,
                tag,
                size,
                number,
            } = state;
            let mut random = Random::new(u64::from(*number));
            let blocks = *size / u64::from(RANDOM_BYTES);
            let mut left = run.share(*number, count);
            pipelined(
                client,
                1,
                || {
                    left = left.checked_sub(1)?;
                    let offset = random.below(blocks) * u64::from(RANDOM_BYTES);
                    Some((read_args(file, offset, RANDOM_BYTES), offset))
                },
                |read, offset, latency| {
                    check_read(&read, offset, RANDOM_BYTES, *size)?;
                    compare(*tag, offset, read.data.as_ref())?;
                    work.bytes += read.data.len() as u64;
                    work.operation(latency);
                    Ok(())
                },
            )
        },
        |_| Ok(()),
    )
}

fn compare(tag: u64, offset: u64, found: &[u8]) -> Result<(), Failure> {
    match data::check(tag, offset, found) {
        Ok(()) => Ok(()),
        Err(at) => wrong(format!(
            "READ: the byte at {at} is not the one that was written"
        )),
    }
}
