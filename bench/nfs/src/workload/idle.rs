//! A lone small call on an idle server, beside the kernel's own round trip: a thread of this process sends its input back, of
//! the same length, over a connection of the same kind. Both take turns, with a pause that lets the server go to sleep.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::Run;
use crate::figures::Latencies;
use steadfast_nfs_client::client::Client;
use steadfast_nfs_client::{Failure, wrong};

/// About the length of a GETATTR call and of its reply.
const ECHO_BYTES: usize = 128;
/// Long enough for all threads to have gone to sleep.
const PAUSE: Duration = Duration::from_micros(300);

/// `count` GETATTR calls and `count` echoes in turns. The lines are the percentiles of both, and by how much the medians differ.
pub(crate) fn idle(run: &Run, count: u64) -> Result<String, Failure> {
    let io = |e: std::io::Error| Failure::Wrong(format!("the echo: {e}"));
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(io)?;
    let address = listener.local_addr().map_err(io)?;
    let server = thread::spawn(move || echo(&listener));
    let mut stream = TcpStream::connect(address).map_err(io)?;
    stream.set_nodelay(true).map_err(io)?;
    let mut client = Client::connect(&run.export.target)?;
    let (mut calls, mut echoes) = (Latencies::default(), Latencies::default());
    let mut bytes = [0x5a; ECHO_BYTES];
    for _ in 0..count {
        thread::sleep(PAUSE);
        let start = Instant::now();
        client.attributes(&run.export.root)?;
        calls.add(start.elapsed());
        thread::sleep(PAUSE);
        let start = Instant::now();
        stream.write_all(&bytes).map_err(io)?;
        stream.read_exact(&mut bytes).map_err(io)?;
        echoes.add(start.elapsed());
    }
    drop(stream);
    match server.join() {
        Ok(Ok(())) => Ok(format!(
            "{}{}above-echo-us {:.6}\n",
            calls.lines("call-"),
            echoes.lines("echo-"),
            calls.median_us() - echoes.median_us()
        )),
        _ => wrong("the echo ended early"),
    }
}

/// Sends back all input until the other side closes.
fn echo(listener: &TcpListener) -> std::io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut bytes = [0; ECHO_BYTES];
    loop {
        match stream.read(&mut bytes)? {
            0 => return Ok(()),
            len => stream.write_all(&bytes[..len])?,
        }
    }
}
