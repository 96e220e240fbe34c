//! One large file per client: UNSTABLE writes, several outstanding, a COMMIT for each 10 MiB.

use std::collections::VecDeque;

use nfs3_types::nfs3::{Nfs3Option, SETATTR3args, nfs_fh3, sattr3, stable_how};

use super::{Run, pipelined};
use crate::data;
use crate::figures::Figures;
use crate::uncommitted::{Piece, Uncommitted};
use steadfast_nfs_client::calls::{read_args, write_args};
use steadfast_nfs_client::client::{Client, check_read};
use steadfast_nfs_client::{Failure, wrong};

const COMMIT_BYTES: u64 = 10 << 20;
/// A piece is 64 KiB, or the server's maximum.
pub(super) const PIECE_BYTES_MAX: u32 = 64 << 10;

/// Writes a file of `mib` mebibytes in all over all clients; `overwrite` writes over one that is there, else it is new. An
/// operation is a piece.
pub(crate) fn largefile(run: &Run, mib: u64, overwrite: bool) -> Result<Figures, Failure> {
    let piece = run.export.write_max.min(PIECE_BYTES_MAX);
    run.side_by_side(
        |number| {
            let size = run.share(number, mib) << 20;
            let (mut client, dir) = run.join(number)?;
            let file = client.create(&dir, "large")?;
            let there = client.attributes(&file)?.size;
            if overwrite && there != size {
                truncate(&mut client, &file)?;
                let first = data::tag(&[u64::from(number), 0]);
                write_file(&mut client, &file, first, size, piece, run.window, |_| ())?;
            } else if !overwrite && there > 0 {
                truncate(&mut client, &file)?;
            }
            let tag = data::tag(&[u64::from(number), 1 + u64::from(overwrite)]);
            Ok((client, file, tag, size))
        },
        |(client, file, tag, size), work| {
            work.bytes += *size;
            write_file(client, file, *tag, *size, piece, run.window, |latency| {
                work.operation(latency);
            })
        },
        |(mut client, file, tag, size)| {
            check_file(
                &mut client,
                &file,
                tag,
                size,
                run.export.read_max,
                run.window,
            )
        },
    )
}

fn truncate(client: &mut Client, file: &nfs_fh3) -> Result<(), Failure> {
    let args = SETATTR3args {
        object: file.clone(),
        new_attributes: sattr3 {
            size: Nfs3Option::Some(0),
            ..sattr3::default()
        },
        guard: Nfs3Option::None,
    };
    client.expect(&args, "SETATTR")?;
    Ok(())
}

/// Writes the bytes of `tag`, with `window` writes outstanding and a COMMIT for each 10 MiB; writes that the server has lost
/// by then are sent again.
pub(super) fn write_file(
    client: &mut Client,
    file: &nfs_fh3,
    tag: u64,
    size: u64,
    piece: u32,
    window: usize,
    mut done: impl FnMut(std::time::Duration),
) -> Result<(), Failure> {
    let mut buffer = vec![0; piece as usize];
    let mut begin = 0;
    while begin < size {
        let end = size.min(begin + COMMIT_BYTES);
        let mut todo: VecDeque<Piece> = (begin..end)
            .step_by(piece as usize)
            .map(|offset| Piece {
                offset,
                len: (end - offset).min(u64::from(piece)) as u32,
            })
            .collect();
        let mut writes = Uncommitted::default();
        while !todo.is_empty() {
            while let Some(piece) = todo.pop_front() {
                let bytes = &mut buffer[..piece.len as usize];
                data::fill(tag, piece.offset, bytes);
                let args = write_args(file, piece.offset, stable_how::UNSTABLE, bytes);
                writes.sent(client.submit(&args)?, piece);
                while client.outstanding() >= window
                    || (todo.is_empty() && client.outstanding() > 0)
                {
                    let reply = client.receive().map_err(|e| e.during("WRITE"))?;
                    writes.answered(&reply)?;
                    done(reply.latency);
                }
                todo.extend(writes.unwritten());
            }
            todo = writes.committed(client.commit(file)?).into();
        }
        begin = end;
    }
    Ok(())
}

/// Reads a whole file and compares it.
pub(super) fn check_file(
    client: &mut Client,
    file: &nfs_fh3,
    tag: u64,
    size: u64,
    read_max: u32,
    window: usize,
) -> Result<(), Failure> {
    let there = client.attributes(file)?.size;
    if there != size {
        return wrong(format!("a file of {size} bytes has {there}"));
    }
    let piece = read_max.min(PIECE_BYTES_MAX);
    let mut offsets = (0..size).step_by(piece as usize);
    pipelined(
        client,
        window,
        || {
            offsets
                .next()
                .map(|offset| (read_args(file, offset, piece), offset))
        },
        |read, offset, _| {
            check_read(&read, offset, piece, size)?;
            match data::check(tag, offset, read.data.as_ref()) {
                Ok(()) => Ok(()),
                Err(at) => wrong(format!("the byte at {at} is not the one that was written")),
            }
        },
    )
}
