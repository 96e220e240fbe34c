//! Which threads read requests: one at a time, as long as that one is quick.
//!
//! The kernel wakes waiting readers in turn, so that several of them make every request
//! of a single client run on another thread, on a cold processor. Here, a thread that
//! has answered while another one reads *parks* instead of reading, too. It is called
//! back when the reader is about to wait for the medium ([`Turns::waits`]: fsync,
//! reads), there are other clients, and such waits have been long of late, or when the
//! reader has been busy with one request for too long (a watch looks after that). Who
//! parked last is called back first, so that few threads do the work.
//!
//! Invariants:
//! * `reading` counts the threads that are on their way to the kernel, waiting there, or
//!   on their way back; a thread that is called back is counted, and no longer among the
//!   parked, before it runs;
//! * no thread parks unless another one reads: requests never wait for nobody;
//! * no thread parks before each has begun a request once, and has so been given the
//!   guard that tells when it leaves for good (the mount is gone);
//! * once a thread has left, no thread parks any more.

use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::placement;

/// How often the watch looks while there are requests; a request may keep the only reader
/// from one to two of these, if there are other clients.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// So many of them if there are none: somebody may come, but most likely the only client would go on
/// with another thread, on another processor.
const LOOKS_ALONE: u32 = 10;
/// Other clients count as being there for so many requests after the last sign of them.
const COMPANY: u64 = 64;
/// Looks without any request after which the watch sleeps until there is one.
const LOOKS_IDLE_MAX: u32 = 50;
/// Waits of this length are worth another thread's waking, in nanoseconds.
const WAIT_LONG_NANOS: u64 = 60_000;

/// What a request may wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum For {
    /// What it reads.
    Content,
    /// What it wants durable.
    Commit,
}

struct State {
    /// Threads that read.
    reading: usize,
    /// Threads that are parked, who came last at the end.
    parked: Vec<Thread>,
    /// Threads that have not begun a request yet.
    fresh: usize,
    /// Requests begun.
    begun: u64,
    /// Who sent the last one.
    client: u32,
    /// Until so many have begun, more than one client is there.
    company_until: u64,
    /// How long waits have been of late, by what for, in nanoseconds.
    waits: [u64; 2],
    /// The watch sleeps.
    watch_asleep: bool,
    /// Nobody parks any more.
    stopped: bool,
}

impl State {
    /// Has a parked thread read, if nobody does: the one to wake.
    fn call_back(&mut self) -> Option<Thread> {
        let called = self.parked.pop_if(|_| self.reading == 0)?;
        self.reading += 1;
        Some(called)
    }

    fn company(&self) -> bool {
        self.begun < self.company_until
    }

    /// Whether such waits have been long of late.
    fn long(&self, what: For) -> bool {
        self.waits[what as usize] >= WAIT_LONG_NANOS
    }
}

/// See the module's header.
pub(crate) struct Turns {
    state: Mutex<State>,
    watch: Condvar,
    /// Done when a thread leaves: the mount is gone.
    on_leave: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// A request in progress; when it is dropped, after the reply, the thread reads or parks.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    may_park: bool,
}

/// A wait within a request.
pub(crate) struct Waiting<'a> {
    turns: &'a Turns,
    what: For,
    since: Instant,
}

/// Stops the turns when its thread ends.
struct Leaving(Arc<Turns>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.stop();
        if let Some(act) = self.0.on_leave.get() {
            act();
        }
    }
}

thread_local! {
    static LEAVING: RefCell<Option<Leaving>> = const { RefCell::new(None) };
}

impl Turns {
    /// For so many threads, all of which begin by reading.
    pub(crate) fn new(threads: usize) -> Arc<Turns> {
        let turns = Arc::new(Turns {
            state: Mutex::new(State {
                reading: threads,
                parked: Vec::with_capacity(threads),
                fresh: threads,
                begun: 0,
                client: 0,
                company_until: 0,
                waits: [WAIT_LONG_NANOS; 2],
                watch_asleep: false,
                stopped: threads < 2,
            }),
            watch: Condvar::new(),
            on_leave: OnceLock::new(),
        });
        if threads > 1 {
            let watch = Arc::clone(&turns);
            let watching = thread::Builder::new().name("fuse-watch".to_owned());
            if watching.spawn(move || watch.look()).is_err() {
                turns.stop(); // nobody watches: nobody parks
            }
        }
        turns
    }

    /// Has something done whenever a thread leaves, because the mount is gone. The first call counts.
    pub(crate) fn on_leave(&self, act: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_leave.set(Box::new(act));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called by a thread that has received a request of the thread `client` (0: nobody).
    pub(crate) fn begin(self: &Arc<Turns>, client: u32) -> Turn<'_> {
        let first = LEAVING.with_borrow_mut(|leaving| {
            let first = leaving.is_none();
            leaving.get_or_insert_with(|| Leaving(Arc::clone(self)));
            first
        });
        let mut state = self.state();
        state.reading = state.reading.saturating_sub(1);
        if first {
            state.fresh = state.fresh.saturating_sub(1);
        }
        state.begun = state.begun.wrapping_add(1);
        if client != 0 && client != state.client {
            if state.client != 0 {
                state.company_until = state.begun.wrapping_add(COMPANY);
            }
            state.client = client;
        }
        if state.watch_asleep {
            state.watch_asleep = false;
            self.watch.notify_one();
        }
        let alone = !state.company();
        drop(state);
        if alone {
            placement::follow(client);
        }
        Turn {
            turns: self,
            may_park: true,
        }
    }

    /// Called by a thread that has received one of several requests at once: it reads
    /// again, or goes on with the next, in any case.
    pub(crate) fn begin_some(self: &Arc<Turns>) -> Turn<'_> {
        let mut turn = self.begin(0);
        turn.may_park = false;
        turn
    }

    /// Called within a request that is about to wait; dropped when it has.
    pub(crate) fn waits(&self, what: For) -> Waiting<'_> {
        let mut state = self.state();
        if state.company()
            && state.long(what)
            && let Some(called) = state.call_back()
        {
            drop(state);
            called.unpark();
        }
        Waiting {
            turns: self,
            what,
            since: Instant::now(),
        }
    }

    /// Whether such waits have been long of late.
    #[cfg(feature = "io-uring")]
    pub(crate) fn long(&self, what: For) -> bool {
        self.state().long(what)
    }

    fn end(&self, may_park: bool) {
        let mut state = self.state();
        if state.stopped || state.reading == 0 || state.fresh > 0 || !may_park {
            state.reading += 1;
            return;
        }
        let me = thread::current();
        let id = me.id();
        state.parked.push(me);
        loop {
            drop(state);
            thread::park();
            state = self.state();
            let Some(at) = state.parked.iter().position(|t| t.id() == id) else {
                return placement::look_soon(); // called back
            };
            if state.stopped {
                state.parked.remove(at);
                state.reading += 1;
                return;
            }
        }
    }

    /// Has every thread read from now on.
    pub(crate) fn stop(&self) {
        let mut state = self.state();
        state.stopped = true;
        state.parked.iter().for_each(Thread::unpark);
        self.watch.notify_all();
    }

    /// Calls a thread back when for too long nobody reads and no request begins.
    fn look(&self) {
        let mut state = self.state();
        let (mut begun, mut idle) = (state.begun, 0);
        while !state.stopped {
            if state.begun == begun {
                idle += 1;
                if (state.company() || idle >= LOOKS_ALONE)
                    && let Some(called) = state.call_back()
                {
                    called.unpark();
                }
            } else {
                begun = state.begun;
                idle = 0;
            }
            if idle > LOOKS_IDLE_MAX && state.reading > 0 {
                state.watch_asleep = true;
                while state.watch_asleep && !state.stopped {
                    state = self
                        .watch
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                (begun, idle) = (state.begun, 0);
            } else {
                let looked = self.watch.wait_timeout(state, LOOK_EVERY);
                state = looked.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.end(self.may_park);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let waited = u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut state = self.turns.state();
        let of_late = &mut state.waits[self.what as usize];
        *of_late = *of_late / 8 * 7 + waited / 8;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::mpsc;
    use std::time::Instant;

    const LIMIT: Duration = Duration::from_secs(300);

    type Request = (u32, Box<dyn FnOnce(&Turns) + Send>);

    /// Readers over a queue that wakes them in turn, as the kernel does.
    struct Server {
        queue: Option<mpsc::Sender<Request>>,
        turns: Arc<Turns>,
        threads: Vec<thread::JoinHandle<()>>,
    }

    impl Server {
        fn new(threads: usize) -> Server {
            let (send, receive) = mpsc::channel::<Request>();
            let receive = Arc::new(Mutex::new(receive));
            let turns = Turns::new(threads);
            let serve = |_| {
                let (turns, receive) = (Arc::clone(&turns), Arc::clone(&receive));
                thread::spawn(move || {
                    loop {
                        let request = receive.lock().unwrap().recv();
                        let Ok((client, request)) = request else {
                            return;
                        };
                        let _turn = turns.begin(client);
                        request(&turns);
                    }
                })
            };
            let threads = (0..threads).map(serve).collect();
            Server {
                queue: Some(send),
                turns,
                threads,
            }
        }

        fn ask(&self, client: u32, request: impl FnOnce(&Turns) + Send + 'static) {
            self.queue
                .as_ref()
                .unwrap()
                .send((client, Box::new(request)))
                .unwrap();
        }

        /// Ends as a mount does: the queue fails, and whoever reads leaves.
        fn finish(mut self) {
            self.queue = None;
            let begun = Instant::now();
            for thread in self.threads.drain(..) {
                while !thread.is_finished() {
                    assert!(begun.elapsed() < LIMIT, "a thread stays behind");
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    #[test]
    fn quick_requests_end_up_on_one_thread() {
        let server = Server::new(4);
        let (tell, told) = mpsc::channel();
        // A busy machine may stop a thread in the middle of a request, and then another one is
        // called back: what counts is that they settle again.
        let (mut last, mut in_a_row) = (None, 0);
        for _ in 0..10_000 {
            let tell = tell.clone();
            server.ask(1, move |_| tell.send(thread::current().id()).unwrap());
            let who = told.recv_timeout(LIMIT).unwrap();
            // Leave time to park: the kernel's client is slower than this loop, too.
            thread::sleep(Duration::from_micros(500));
            in_a_row = if last == Some(who) { in_a_row + 1 } else { 1 };
            last = Some(who);
            if in_a_row == 20 {
                break;
            }
        }
        assert_eq!(in_a_row, 20, "requests keep changing threads");
        server.finish();
    }

    #[test]
    fn requests_that_wait_do_not_stop_the_others_announced_or_not() {
        for announced in [true, false] {
            let server = Server::new(4);
            let (tell, told) = mpsc::channel();
            let (release, gate) = mpsc::channel::<()>();
            let gate = Arc::new(Mutex::new(gate));
            for _ in 0..3 {
                let (gate, slow) = (Arc::clone(&gate), tell.clone());
                server.ask(1, move |turns| {
                    if announced {
                        let _waiting = turns.waits(For::Commit);
                    }
                    let _ = gate.lock().unwrap().recv_timeout(LIMIT);
                    slow.send("slow").unwrap();
                });
                for _ in 0..20 {
                    let tell = tell.clone();
                    server.ask(2, move |_| tell.send("quick").unwrap());
                    assert_eq!(told.recv_timeout(LIMIT), Ok("quick"));
                }
            }
            for _ in 0..3 {
                release.send(()).unwrap();
                assert_eq!(told.recv_timeout(LIMIT), Ok("slow"));
            }
            server.finish();
        }
    }

    #[test]
    fn a_mount_that_was_hardly_used_ends_at_once() {
        for requests in 0..6 {
            let server = Server::new(4);
            let (tell, told) = mpsc::channel();
            for _ in 0..requests {
                let tell = tell.clone();
                server.ask(1, move |_| tell.send(()).unwrap());
                told.recv_timeout(LIMIT).unwrap();
            }
            server.finish();
        }
    }

    #[test]
    fn every_thread_is_accounted_for_through_requests_that_come_in_batches() {
        let turns = Turns::new(3);
        // Every thread begins once, else nobody parks.
        for _ in 0..3 {
            let turns = Arc::clone(&turns);
            let counted = thread::spawn(move || {
                drop(turns.begin_some());
                drop(turns.begin_some());
                turns.state().reading
            });
            assert_eq!(counted.join().unwrap(), 3);
        }
        turns.stop();
    }

    #[test]
    fn a_storm_of_mixed_requests_is_answered_completely() {
        let server = Server::new(5);
        let (tell, told) = mpsc::channel();
        for i in 0..3000u32 {
            let tell = tell.clone();
            server.ask(i % 3, move |turns| {
                if i % 7 == 0 {
                    let _waiting = turns.waits(For::Content);
                    thread::sleep(Duration::from_micros(200));
                }
                tell.send(i).unwrap();
            });
        }
        let mut seen: Vec<u32> = (0..3000)
            .map(|_| told.recv_timeout(LIMIT).unwrap())
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..3000).collect::<Vec<_>>());
        let state = server.turns.state();
        assert!(state.reading + state.parked.len() <= 5);
        drop(state);
        server.finish();
    }
}
