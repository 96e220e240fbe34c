//! The lines of a cut and of the recovery after it, for `oracle journal`.

use super::running::{Trace, Written, header_bytes};
use super::{Event, Place, Recorder, read_block};
use crate::layout::TailHeader;
use crate::{Recovery, Result};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;
use steadfast_block::{Block, BlockDevice, BlockNo};

/// A cut of a trace, and the events after it.
pub struct Cut<'a> {
    trace: &'a mut Trace,
    /// Headers and parts of records that may be there: the first `known` of the trace, and those of the recovery.
    known: usize,
    headers: Vec<Written>,
    /// Newest content of each block, and which blocks were written since the start.
    now: Vec<Arc<Block>>,
    touched: BTreeSet<u64>,
    lines: String,
}

impl Trace {
    /// Cuts the trace after `events` of its events; `image` is the device after the cut.
    ///
    /// # Errors
    /// A read error of the image.
    pub fn cut(&mut self, events: usize, image: &dyn BlockDevice) -> Result<Cut<'_>> {
        let known = self.written.partition_point(|written| written.at <= events);
        let mut cut = Cut {
            known,
            headers: Vec::new(),
            now: self.start.to_vec(),
            touched: BTreeSet::new(),
            lines: format!("cut {}\n", self.counts[events]),
            trace: self,
        };
        for at in 0..events {
            let event = cut.trace.events[at].clone();
            cut.see(&event);
        }
        cut.survived(image)?;
        Ok(cut)
    }
}

impl Cut<'_> {
    /// All lines since the cut.
    #[must_use]
    pub fn lines(&self) -> &str {
        &self.lines
    }

    fn line(&mut self, line: impl std::fmt::Display) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.lines, "{line}");
    }

    fn see(&mut self, event: &Event) {
        if let Event::Write(_, first, blocks) = event {
            for (i, block) in blocks.iter().enumerate() {
                let at = first.0 + i as u64;
                self.now[at as usize] = Arc::new(*block);
                self.touched.insert(at);
            }
        }
    }

    /// Blocks that survived with other than their newest content.
    fn survived(&mut self, image: &dyn BlockDevice) -> Result<()> {
        for at in self.touched.clone() {
            let left = read_block(image, BlockNo(at))?;
            if left == self.now[at as usize] {
                continue;
            }
            let place = self.trace.volume.place(BlockNo(at));
            let older = self.trace.written[..self.known].iter().chain(&self.headers);
            // Behind the bytes that count, a block may be torn and hold all the same.
            let held = |block: &Block| {
                let holds = |w: &&Written| w.place == place && block.starts_with(&w.bytes);
                let mut written = older.clone().rev();
                written.find(holds).map(|w| w.name.clone())
            };
            let (was, is) = (held(&self.now[at as usize]), held(&left));
            match place {
                Place::Home => {
                    let content = self.trace.names.block(&left);
                    self.line(format_args!("survived {at} {content}"));
                }
                _ if was == is => {}
                Place::Header(slot) => {
                    self.line(format_args!("header {slot} {}", is.unwrap_or("-".into())));
                }
                Place::Log(slot) => {
                    self.line(format_args!("slot {slot} {}", is.unwrap_or("-".into())));
                }
            }
            self.now[at as usize] = left;
        }
        self.line("recover");
        Ok(())
    }

    /// The recovery that was recorded, up to its end, or (`recovered` is `None`) its first
    /// `events` events.
    pub fn recovery(&mut self, recorder: &Recorder, events: usize, recovered: Option<&Recovery>) {
        let all = recorder.stop();
        let volume = self.trace.volume.clone();
        let header = |event: &Event| match event {
            Event::Write(_, at, blocks) => match volume.place(*at) {
                Place::Header(_) => TailHeader::decode(&volume.identity, &blocks[0]).ok(),
                _ => None,
            },
            _ => None,
        };
        let fresh = |event: &Event| header(event).is_some_and(|h| h.verdict.is_none());
        // Replay is complete when the flush begins that precedes the empty log's header; the
        // first flush is the scan's.
        let end = all.iter().position(fresh).unwrap_or(all.len());
        let flushes: Vec<usize> = (0..end)
            .filter(|i| matches!(all[*i], Event::Flush(_)))
            .collect();
        let replayed = flushes.last().filter(|_| flushes.len() > 1).copied();
        let mut writes = Vec::new();
        for (i, event) in all.iter().enumerate().take(events) {
            if replayed == Some(i) {
                self.line("replay-done");
            }
            self.see(event);
            match event {
                Event::Write(name, first, blocks) => {
                    let done = match header(event) {
                        Some(header) => self.header(*first, &blocks[0], &header),
                        None => {
                            for (i, block) in blocks.iter().enumerate() {
                                let content = self.trace.names.block(block);
                                let at = first.offset(i as u64);
                                self.line(format_args!("replay {at} {content}"));
                            }
                            None
                        }
                    };
                    writes.push((*name, done));
                }
                Event::Written(name) => {
                    let done = writes.iter().find(|(write, _)| write == name);
                    if let Some((_, Some(done))) = done {
                        self.line(*done);
                    }
                }
                Event::Flush(name) => self.line(format_args!("flush {name}")),
                Event::Flushed(name) => self.line(format_args!("flushed {name}")),
                Event::Decided(_) | Event::Read(..) => {}
            }
        }
        if let Some(recovered) = recovered {
            let records = volume.seq(recovered.last_seq + 1);
            self.line(format_args!("open {records}"));
        }
    }

    fn header(&mut self, at: BlockNo, block: &Block, header: &TailHeader) -> Option<&'static str> {
        let volume = &self.trace.volume;
        let other = volume.region.headers.iter().find(|other| **other != at);
        let newer = other.and_then(|other| {
            TailHeader::decode(&volume.identity, &self.now[other.0 as usize][..]).ok()
        });
        let generation = volume.generation(header.generation);
        if newer.is_none_or(|newer| newer.generation + 1 != header.generation) {
            self.line(format_args!("header {generation} over the newer one"));
            return None;
        }
        let volume = &self.trace.volume;
        let (epoch, tail) = (volume.epoch(header.epoch), volume.seq(header.tail_seq));
        let (pos, flushed) = (
            volume.pos(header.tail_pos),
            volume.flushed(header.flushed_seq),
        );
        self.headers.push(Written {
            at: 0,
            place: volume.place(at),
            bytes: header_bytes(block),
            name: generation.to_string(),
        });
        match header.verdict {
            Some((_, end)) => {
                let (of, end) = (volume.epoch(header.record_epoch), volume.seq(end));
                self.line(format_args!(
                    "verdict {generation} {epoch} {of} {tail} {pos} {end} {flushed}"
                ));
                Some("verdict-done")
            }
            None => {
                self.line(format_args!(
                    "fresh {generation} {epoch} {tail} {pos} {flushed}"
                ));
                Some("fresh-done")
            }
        }
    }

    /// Cuts again, in the recovery or after it; `image` is the device after the cut.
    ///
    /// # Errors
    /// A read error of the image.
    pub fn again(&mut self, image: &dyn BlockDevice) -> Result<()> {
        self.line("again");
        self.survived(image)
    }
}
