//! A relay that delays what it passes on: the distance to a store, on loopback.
//!
//! Each direction of a connection is a line of pieces that leave in their order, a fixed time after they came. So a delay changes no
//! rate, and requests that are on their way together wait together.

use std::io::{Read, Result, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

const PIECE: usize = 256 << 10;
/// Pieces of a direction that are under way, at most.
const PIECES_MOST: usize = 256;

/// Relays connections to a port of this host, each direction delayed by `one_way`. Prints its own port, and serves until it is ended.
pub(crate) fn serve(to: u16, one_way: Duration) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?.port());
    loop {
        let client = listener.accept()?.0;
        match TcpStream::connect((Ipv4Addr::LOCALHOST, to)) {
            Ok(server) => {
                relay(client.try_clone()?, server.try_clone()?, one_way)?;
                relay(server, client, one_way)?;
            }
            // The client finds its connection closed.
            Err(error) => eprintln!("proxy: {error}"),
        }
    }
}

/// Passes on one direction.
fn relay(from: TcpStream, to: TcpStream, delay: Duration) -> Result<()> {
    from.set_nodelay(true)?;
    to.set_nodelay(true)?;
    let (queue, pieces) = sync_channel(PIECES_MOST);
    thread::spawn(move || {
        // A connection that breaks ends: both ends see it.
        let _ = take(from, &queue);
    });
    thread::spawn(move || {
        let _ = pass(&pieces, &to, delay);
        let _ = to.shutdown(Shutdown::Write);
    });
    Ok(())
}

fn take(mut from: TcpStream, queue: &SyncSender<(Instant, Vec<u8>)>) -> Result<()> {
    loop {
        let mut piece = vec![0; PIECE];
        let len = from.read(&mut piece)?;
        piece.truncate(len);
        if len == 0 || queue.send((Instant::now(), piece)).is_err() {
            return Ok(());
        }
    }
}

fn pass(pieces: &Receiver<(Instant, Vec<u8>)>, mut to: &TcpStream, delay: Duration) -> Result<()> {
    for (came, piece) in pieces {
        thread::sleep((came + delay).saturating_duration_since(Instant::now()));
        to.write_all(&piece)?;
    }
    Ok(())
}
