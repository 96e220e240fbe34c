//! Decides which threads serve requests, on which processors, and whether idle processors poll: carries out [`rule`].
//!
//! The kernel wakes threads that wait for requests at `/dev/fuse` in turn, so that several of them make every request
//! of a single client run on another thread, on a cold processor. Here, a thread that
//! has answered while another one reads *parks* instead of reading, too. It is called
//! back when the reader is about to wait ([`Readers::waits`]) and the rule says that it will sleep for long,
//! or when the reader has been busy with one request for too long (a watch looks after that). The thread that
//! parked last is called back first, so that few threads do the work. Over io_uring each processor's queue has
//! a thread that stays: it gives the wait to another thread instead ([`Readers::sleeps`]).
//!
//! Invariants:
//! * `reading` counts the threads that are on their way to the kernel, waiting there, or
//!   on their way back; a thread that is called back is counted, and no longer among the
//!   parked, before it runs;
//! * no thread parks unless another one reads: a request always finds a reader;
//! * no thread parks before each has begun a request once, and so has the
//!   guard that reports when it leaves for good (the mount is gone);
//! * once a thread has left, no thread parks any more.

mod place;
mod poll;
mod rule;

use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use poll::IdlePoll;
pub(crate) use rule::For;
use rule::Rule;

/// Interval of the watch's looks while there are requests; a request may keep the only
/// reader for one to two of these, if there are other clients.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// As many of them if there are none: a client may come, but most likely the only client would go on
/// with another thread, on another processor.
const LOOKS_ALONE: u32 = 10;
/// Looks without any request after which the watch sleeps until there is one.
const LOOKS_IDLE_MAX: u32 = 50;

struct State {
    /// Threads that read.
    reading: usize,
    /// Threads that are parked, the last to come at the end.
    parked: Vec<Thread>,
    /// Threads that have not begun a request yet.
    fresh: usize,
    rule: Rule,
    /// Requests are served by threads that stay where they are.
    in_place: bool,
    /// The watch sleeps.
    watch_asleep: bool,
    /// No thread parks any more.
    stopped: bool,
}

impl State {
    /// Lets a parked thread read, if none reads: returns the one to wake.
    fn call_back(&mut self) -> Option<Thread> {
        let called = self.parked.pop_if(|_| self.reading == 0)?;
        self.reading += 1;
        Some(called)
    }
}

/// See the module's header.
pub(crate) struct Readers {
    state: Mutex<State>,
    watch: Condvar,
    /// Done when a thread leaves: the mount is gone.
    on_leave: OnceLock<Box<dyn Fn() + Send + Sync>>,
    poll: Option<IdlePoll>,
    since: Instant,
}

/// A request in progress; when it is dropped, after the reply, the thread reads or parks.
pub(crate) struct Serving<'a> {
    readers: &'a Readers,
    may_park: bool,
}

/// A wait within a request.
pub(crate) struct Waiting<'a> {
    _measured: Option<Measured<'a>>,
}

struct Measured<'a> {
    readers: &'a Readers,
    what: For,
    since: Instant,
    worked: Duration,
}

/// Processor time of this thread.
fn worked() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // Neither is negative.
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

/// Stops the readers when its thread ends.
struct Leaving(Arc<Readers>);

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

impl Readers {
    /// For `threads` threads, all of which begin by reading. With `poll`, idle processors poll for a lone client.
    pub(crate) fn new(threads: usize, poll: bool) -> Arc<Readers> {
        let readers = Arc::new(Readers {
            state: Mutex::new(State {
                reading: threads,
                parked: Vec::with_capacity(threads),
                fresh: threads,
                rule: Rule::new(),
                in_place: false,
                watch_asleep: false,
                stopped: threads < 2,
            }),
            watch: Condvar::new(),
            on_leave: OnceLock::new(),
            poll: poll.then(IdlePoll::new),
            since: Instant::now(),
        });
        if threads > 1 {
            let watch = Arc::clone(&readers);
            let watching = thread::Builder::new().name("fuse-watch".to_owned());
            if watching.spawn(move || watch.look()).is_err() {
                readers.stop(); // without a watch no thread parks
            }
        }
        readers
    }

    /// Has something done whenever a thread leaves, because the mount is gone. The first call counts.
    pub(crate) fn on_leave(&self, act: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_leave.set(Box::new(act));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called by a thread that has received a request of the thread `client` (0: none).
    pub(crate) fn begin(self: &Arc<Readers>, client: u32) -> Serving<'_> {
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
        if state.watch_asleep {
            state.watch_asleep = false;
            self.watch.notify_one();
        }
        if !self.count(state, client) {
            place::follow(client);
        }
        Serving {
            readers: self,
            may_park: true,
        }
    }

    /// Called by a thread that has received one of several requests at once: it reads
    /// again, or goes on with the next, in any case.
    pub(crate) fn begin_some(self: &Arc<Readers>) -> Serving<'_> {
        let mut serving = self.begin(0);
        serving.may_park = false;
        serving
    }

    /// Called by a thread that stays where it is and has received a request of the thread `client`.
    pub(crate) fn begin_in_place(&self, client: u32) {
        let mut state = self.state();
        state.in_place = true;
        self.count(state, client);
    }

    /// Tells the rule of a request. Whether there are other clients.
    fn count(&self, mut state: MutexGuard<'_, State>, client: u32) -> bool {
        state.rule.begin(client);
        let company = state.rule.company();
        if let Some(poll) = &self.poll {
            match (poll.requested(), company) {
                (true, true) => poll.rest(),
                (false, false) if state.rule.polls(self.since.elapsed()) => {
                    drop(state);
                    poll.wake();
                }
                _ => {}
            }
        }
        company
    }

    /// Called within a request that is about to wait; dropped when it has.
    pub(crate) fn waits(&self, what: For) -> Waiting<'_> {
        let mut state = self.state();
        if !state.rule.company() && !state.in_place {
            return Waiting { _measured: None }; // no thread is to be called, so there is nothing to learn
        }
        if state.rule.sleeps(what)
            && let Some(called) = state.call_back()
        {
            drop(state);
            called.unpark();
        }
        Waiting {
            _measured: Some(Measured {
                readers: self,
                what,
                since: Instant::now(),
                worked: worked(),
            }),
        }
    }

    /// Whether such a wait will probably put this thread to sleep for long.
    pub(crate) fn sleeps(&self, what: For) -> bool {
        self.state().rule.sleeps(what)
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
                return place::look_soon(); // called back
            };
            if state.stopped {
                state.parked.remove(at);
                state.reading += 1;
                return;
            }
        }
    }

    /// Lets every thread read from now on.
    pub(crate) fn stop(&self) {
        let mut state = self.state();
        state.stopped = true;
        state.parked.iter().for_each(Thread::unpark);
        self.watch.notify_all();
    }

    /// Calls a thread back when for too long none reads and no request begins.
    fn look(&self) {
        let mut state = self.state();
        let (mut begun, mut idle) = (state.rule.begun(), 0);
        while !state.stopped {
            if state.rule.begun() == begun {
                idle += 1;
                if (state.rule.company() || idle >= LOOKS_ALONE)
                    && let Some(called) = state.call_back()
                {
                    called.unpark();
                }
            } else {
                begun = state.rule.begun();
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
                (begun, idle) = (state.rule.begun(), 0);
            } else {
                let looked = self.watch.wait_timeout(state, LOOK_EVERY);
                state = looked.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.readers.end(self.may_park);
    }
}

impl Drop for Measured<'_> {
    fn drop(&mut self) {
        let worked = worked().saturating_sub(self.worked);
        let asleep = self.since.elapsed().saturating_sub(worked);
        self.readers.state().rule.slept(self.what, asleep);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::mpsc;
    use std::time::Instant;

    const LIMIT: Duration = Duration::from_secs(300);

    type Request = (u32, Box<dyn FnOnce(&Readers) + Send>);

    /// Threads over a queue that wakes them in turn, as the kernel does.
    struct Server {
        queue: Option<mpsc::Sender<Request>>,
        readers: Arc<Readers>,
        threads: Vec<thread::JoinHandle<()>>,
    }

    impl Server {
        fn new(threads: usize) -> Server {
            let (send, receive) = mpsc::channel::<Request>();
            let receive = Arc::new(Mutex::new(receive));
            let readers = Readers::new(threads, false);
            let serve = |_| {
                let (readers, receive) = (Arc::clone(&readers), Arc::clone(&receive));
                thread::spawn(move || {
                    loop {
                        let request = receive.lock().unwrap().recv();
                        let Ok((client, request)) = request else {
                            return;
                        };
                        let _serving = readers.begin(client);
                        request(&readers);
                    }
                })
            };
            let threads = (0..threads).map(serve).collect();
            Server {
                queue: Some(send),
                readers,
                threads,
            }
        }

        fn ask(&self, client: u32, request: impl FnOnce(&Readers) + Send + 'static) {
            self.queue
                .as_ref()
                .unwrap()
                .send((client, Box::new(request)))
                .unwrap();
        }

        /// Ends as a mount does: the queue fails, and the readers leave.
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
        // called back: the point is that they settle again.
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
                server.ask(1, move |readers| {
                    if announced {
                        let _waiting = readers.waits(For::Commit);
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
        let readers = Readers::new(3, false);
        // Every thread begins once, else none parks.
        for _ in 0..3 {
            let readers = Arc::clone(&readers);
            let counted = thread::spawn(move || {
                drop(readers.begin_some());
                drop(readers.begin_some());
                readers.state().reading
            });
            assert_eq!(counted.join().unwrap(), 3);
        }
        readers.stop();
    }

    #[test]
    fn a_storm_of_mixed_requests_is_answered_completely() {
        let server = Server::new(5);
        let (tell, told) = mpsc::channel();
        for i in 0..3000u32 {
            let tell = tell.clone();
            server.ask(i % 3, move |readers| {
                if i % 7 == 0 {
                    let _waiting = readers.waits(For::Content);
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
        let state = server.readers.state();
        assert!(state.reading + state.parked.len() <= 5);
        drop(state);
        server.finish();
    }
}
