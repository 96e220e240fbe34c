//! The floor under a call's latency: its stores to the medium, done again by bare code.
//!
//! A call is recorded ([`steadfast_pm::Recorder`]). Its [`Plan`] does the same to another region with the same content: the
//! same words stored, the same bytes stored as data, the same lines written back, the same fences, at the same addresses and in
//! the same order. It has no locks, no indexes, no checks. So a floor contains no assumption about a call's needs: it is the
//! rest if the software around the stores cost nothing.
//!
//! Data comes from the caller's buffer wherever the recorded bytes are those of the buffer, as in the call itself: so both find
//! it in the processor's cache.

use steadfast_pm::{Counts, Event, LINE_BYTES, Region};

/// One thing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// An ordinary store.
    Store { at: u64, word: u64 },
    /// Data from the caller's buffer.
    Data { at: u64, from: usize, len: usize },
    /// Data that the caller did not bring: zeros, and words that were merged.
    Own { at: u64, from: usize, len: usize },
    /// Bytes read into the caller's buffer.
    Load { at: u64, into: usize, len: usize },
    /// Consecutive lines.
    WriteBack { at: u64, len: u64 },
    /// A fence.
    Fence,
}

/// Effect of some calls on the medium.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    steps: Vec<Step>,
    own: Vec<u8>,
    counts: Counts,
    /// Beginning of each call, in order.
    calls: Vec<usize>,
}

impl Plan {
    /// The plan of calls that were recorded, each after a mark and each with `buffer` as its data. Events before the first
    /// mark are left out.
    pub(crate) fn of(events: &[Event], buffer: &[u8]) -> Plan {
        let mut plan = Plan::default();
        let marked = |event: &Event| matches!(event, Event::Mark(_));
        let first = events.iter().position(marked).unwrap_or(events.len());
        let mut brought = 0;
        let mut rest = &events[first..];
        while let Some((event, others)) = rest.split_first() {
            rest = others;
            match *event {
                Event::Mark(_) => {
                    plan.calls.push(plan.steps.len());
                    brought = 0;
                }
                Event::Store { at, word } => {
                    plan.counts.stores += 1;
                    plan.steps.push(Step::Store { at, word });
                }
                Event::Data { at, word } => {
                    let mut bytes = word.to_le_bytes().to_vec();
                    while let Some((Event::Data { at: next, word }, others)) = rest.split_first()
                        && *next == at + bytes.len() as u64
                    {
                        bytes.extend_from_slice(&word.to_le_bytes());
                        rest = others;
                    }
                    plan.data(at, &bytes, buffer, &mut brought);
                }
                Event::WriteBack { line } => plan.line(line),
                Event::Fence => {
                    plan.counts.fences += 1;
                    plan.steps.push(Step::Fence);
                }
            }
        }
        plan
    }

    /// The plan that reads the bytes that the calls of this plan took from the caller's buffer.
    pub(crate) fn reading(&self) -> Plan {
        let mut plan = Plan::default();
        for (call, &begin) in self.calls.iter().enumerate() {
            plan.calls.push(plan.steps.len());
            let end = self.calls.get(call + 1).copied();
            for step in &self.steps[begin..end.unwrap_or(self.steps.len())] {
                if let Step::Data { at, from, len } = *step {
                    plan.steps.push(Step::Load {
                        at,
                        into: from,
                        len,
                    });
                }
            }
        }
        plan
    }

    fn data(&mut self, at: u64, bytes: &[u8], buffer: &[u8], brought: &mut usize) {
        let len = bytes.len();
        self.counts.data_bytes += len as u64;
        if buffer.get(*brought..*brought + len) == Some(bytes) {
            let from = *brought;
            self.steps.push(Step::Data { at, from, len });
            *brought += len;
        } else {
            let from = self.own.len();
            self.own.extend_from_slice(bytes);
            self.steps.push(Step::Own { at, from, len });
        }
    }

    fn line(&mut self, line: u64) {
        self.counts.lines += 1;
        let next = line * LINE_BYTES;
        match self.steps.last_mut() {
            Some(Step::WriteBack { at, len }) if *at + *len == next => *len += LINE_BYTES,
            _ => self.steps.push(Step::WriteBack {
                at: next,
                len: LINE_BYTES,
            }),
        }
    }

    /// Calls in it.
    pub(crate) fn calls(&self) -> usize {
        self.calls.len()
    }

    /// Counts of the whole plan.
    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// The first `calls` calls, and the others.
    pub(crate) fn split(mut self, calls: usize) -> (Plan, Plan) {
        let at = self.calls.get(calls).copied().unwrap_or(self.steps.len());
        let mut later = Plan {
            steps: self.steps.split_off(at),
            own: self.own.clone(),
            counts: Counts::default(),
            calls: self.calls.split_off(calls.min(self.calls.len())),
        };
        for call in &mut later.calls {
            *call -= at;
        }
        self.counts = Counts::default();
        for plan in [&mut self, &mut later] {
            plan.count();
        }
        (self, later)
    }

    fn count(&mut self) {
        for step in &self.steps {
            match *step {
                Step::Store { .. } => self.counts.stores += 1,
                Step::Data { len, .. } | Step::Own { len, .. } => {
                    self.counts.data_bytes += len as u64;
                }
                Step::WriteBack { len, .. } => self.counts.lines += len / LINE_BYTES,
                Step::Fence => self.counts.fences += 1,
                Step::Load { .. } => {}
            }
        }
    }

    /// Does it all.
    pub(crate) fn replay(&self, region: &Region, buffer: &mut [u8]) {
        for step in &self.steps {
            match *step {
                Step::Store { at, word } => region.store(at, word),
                Step::Data { at, from, len } => region.write_data(at, &buffer[from..from + len]),
                Step::Own { at, from, len } => region.write_data(at, &self.own[from..from + len]),
                Step::Load { at, into, len } => region.read(at, &mut buffer[into..into + len]),
                Step::WriteBack { at, len } => region.write_back(at, len),
                Step::Fence => region.fence(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use steadfast_pm::thread_counts;

    /// A "call" on a region: zeros, two pieces of the buffer, a word, write-back, fences.
    fn call(region: &Region, at: u64, buffer: &[u8]) {
        region.write_data(at, &buffer[..64]);
        region.write_data(at + 4096, &buffer[64..]);
        region.zero_data(at + 8192, 24);
        region.fence();
        region.store(at + 1024, 7);
        region.store(at + 1088, 8);
        region.write_back(at + 1024, 72);
        region.fence();
    }

    fn recorded() -> (Plan, Vec<u8>, Region) {
        let region = Region::recorded(vec![0; 1 << 16]);
        let recorder = region.recorder().unwrap();
        let buffer: Vec<u8> = (1..=128).collect();
        region.store(0, 1);
        for i in 0..3 {
            recorder.mark(i);
            call(&region, 128 * i, &buffer);
        }
        (Plan::of(&recorder.events(), &buffer), buffer, region)
    }

    #[test]
    fn a_replay_leaves_the_content_of_the_recorded_region_and_counts_the_same() {
        let (plan, mut buffer, recorded) = recorded();
        let other = Region::anonymous(1 << 16);
        other.store(0, 1);
        let before = thread_counts();
        plan.replay(&other, &mut buffer);
        let did = thread_counts() - before;
        assert_eq!(did, plan.counts());
        assert_eq!(
            (did.stores, did.data_bytes, did.lines, did.fences),
            (6, 456, 6, 6)
        );
        assert!(other.content() == recorded.content());
        assert_eq!(plan.calls(), 3);
    }

    #[test]
    fn a_plan_can_be_cut_between_calls() {
        let (plan, mut buffer, recorded) = recorded();
        let other = Region::anonymous(1 << 16);
        other.store(0, 1);
        let (first, later) = plan.split(1);
        assert_eq!((first.calls(), later.calls()), (1, 2));
        assert_eq!((first.counts().fences, later.counts().fences), (2, 4));
        first.replay(&other, &mut buffer);
        later.replay(&other, &mut buffer);
        assert!(other.content() == recorded.content());
    }

    #[test]
    fn reading_loads_the_callers_range_and_nothing_else() {
        let (plan, buffer, recorded) = recorded();
        let reading = plan.reading();
        let mut read = vec![0; buffer.len()];
        let before = thread_counts();
        reading.replay(&recorded, &mut read);
        assert_eq!(thread_counts() - before, Counts::default());
        assert_eq!(read, buffer);
        assert_eq!((reading.calls(), reading.steps.len()), (3, 6));
    }
}
