//! Virtual time: the time of each operation, and when each die and channel is free. Results are
//! exact and the same on every machine.

use crate::Geometry;
use std::collections::VecDeque;

/// Virtual time.
pub type Nanoseconds = u64;

/// Times of operations. Pages of different kinds alternate within a block (lower and upper
/// pages of multi-level cells).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Latency {
    /// Reading a page into the die's register, by page number modulo the length.
    pub read_ns: Vec<Nanoseconds>,
    /// Programming a page from it, likewise.
    pub program_ns: Vec<Nanoseconds>,
    /// Erasing a block.
    pub erase_ns: Nanoseconds,
    /// Moving a page over the channel.
    pub transfer_ns: Nanoseconds,
    /// Operations that a die may have waiting; issuing one more waits for the oldest.
    pub queue_depth: usize,
}

impl Latency {
    /// No time at all: for tests of behaviour.
    #[must_use]
    pub fn none() -> Latency {
        Latency::of(&[0], &[0], 0, 0)
    }

    /// Single-level cells, as FEMU emulates them.
    #[must_use]
    pub fn slc() -> Latency {
        Latency::of(&[40_000], &[800_000], 2_000_000, 20_000)
    }

    /// Multi-level cells, as FEMU emulates them: the emulator of the paper's evaluation.
    #[must_use]
    pub fn mlc() -> Latency {
        Latency::of(&[48_000, 64_000], &[850_000, 2_300_000], 3_000_000, 52_433)
    }

    fn of(read: &[u64], program: &[u64], erase_ns: u64, transfer_ns: u64) -> Latency {
        Latency {
            read_ns: read.to_vec(),
            program_ns: program.to_vec(),
            erase_ns,
            transfer_ns,
            queue_depth: 64,
        }
    }

    fn by_page(times: &[Nanoseconds], page: u32) -> Nanoseconds {
        match times.len() {
            0 => 0,
            kinds => times[page as usize % kinds],
        }
    }
}

/// Times at which dies and channels are free.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    pub(crate) now: Nanoseconds,
    latency: Latency,
    die_free: Vec<Nanoseconds>,
    channel_free: Vec<Nanoseconds>,
    waiting: Vec<VecDeque<Nanoseconds>>,
    /// Time at which the last program that was issued is done.
    pub(crate) programs_done: Nanoseconds,
}

impl Clock {
    pub(crate) fn new(geometry: &Geometry, latency: Latency) -> Clock {
        let dies = geometry.all_dies() as usize;
        Clock {
            now: 0,
            latency,
            die_free: vec![0; dies],
            channel_free: vec![0; geometry.channels as usize],
            waiting: vec![VecDeque::new(); dies],
            programs_done: 0,
        }
    }

    pub(crate) fn latency(&self) -> &Latency {
        &self.latency
    }

    /// Bytes come to the host at the returned time. The channel is free for others meanwhile.
    pub(crate) fn read(&mut self, die: u32, channel: u32, page: u32) -> Nanoseconds {
        let (die, channel) = (die as usize, channel as usize);
        let sensed =
            self.now.max(self.die_free[die]) + Latency::by_page(&self.latency.read_ns, page);
        let done = sensed.max(self.channel_free[channel]) + self.latency.transfer_ns;
        self.channel_free[channel] = done;
        self.die_free[die] = done;
        done
    }

    /// A program, whose bytes are there at `after`.
    pub(crate) fn program(&mut self, die: u32, channel: u32, page: u32, after: Nanoseconds) {
        let (die, channel) = (die as usize, channel as usize);
        self.admit(die);
        let moved = self
            .now
            .max(after)
            .max(self.channel_free[channel])
            .max(self.die_free[die])
            + self.latency.transfer_ns;
        // A transfer that waits for its die or its bytes does not hold the channel meanwhile.
        self.channel_free[channel] =
            self.channel_free[channel].max(self.now) + self.latency.transfer_ns;
        self.finish(
            die,
            moved + Latency::by_page(&self.latency.program_ns, page),
        );
        self.programs_done = self.programs_done.max(self.die_free[die]);
    }

    /// An erase; returns when it is done.
    pub(crate) fn erase(&mut self, die: u32) -> Nanoseconds {
        let die = die as usize;
        self.admit(die);
        let done = self.now.max(self.die_free[die]) + self.latency.erase_ns;
        self.finish(die, done);
        done
    }

    fn finish(&mut self, die: usize, done: Nanoseconds) {
        self.die_free[die] = done;
        self.waiting[die].push_back(done);
    }

    fn admit(&mut self, die: usize) {
        let waiting = &mut self.waiting[die];
        while waiting.front().is_some_and(|&done| done <= self.now) {
            waiting.pop_front();
        }
        while waiting.len() >= self.latency.queue_depth.max(1) {
            if let Some(done) = waiting.pop_front() {
                self.now = self.now.max(done);
            }
        }
    }

    pub(crate) fn wait(&mut self, until: Nanoseconds) {
        self.now = self.now.max(until);
    }
}
