//! Input of a connection: reads the socket, decrypts TLS if it has begun, and assembles records.
//!
//! A record uses the worker's buffer until more than [`UNRESERVED_BYTES`] of it have arrived. Then memory for the longest
//! record is reserved, once.

use super::*;
use crate::record::{Assembler, exactly_one};
use crate::tls::Broken;

/// Bytes of a record that may arrive before its memory is reserved.
const UNRESERVED_BYTES: usize = 16 << 10;
/// Reads without a complete record before other connections get their turn.
const READS_MAX: usize = 64;

/// The input of a connection.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) record_bytes: usize,
    pub(super) assembler: Assembler,
    /// It holds a part of a TLS record.
    pub(super) part_of_tls: bool,
    /// Bytes counted in the budget for the arriving record.
    pub(super) counted: usize,
}

impl Input {
    pub(super) fn is_idle(&self) -> bool {
        self.assembler.is_idle() && !self.part_of_tls
    }

    /// Takes bytes of records, and counts the bytes that it holds.
    fn feed(&mut self, mut bytes: &[u8], budget: &Budget, whole: &mut Whole) -> Result<(), Ending> {
        while let Some(record) = self
            .assembler
            .feed(&mut bytes)
            .map_err(|_| Ending::Garbage)?
        {
            self.took(record, budget, whole);
        }
        self.count(budget);
        Ok(())
    }

    /// Takes a complete record.
    fn took(&mut self, record: Vec<u8>, budget: &Budget, whole: &mut Whole) {
        let counted = std::mem::take(&mut self.counted);
        match record.capacity().checked_sub(counted) {
            Some(more) => budget.add(Account::Arriving, more),
            None => budget.sub(Account::Arriving, counted - record.capacity()),
        }
        whole.push_back(record);
    }

    /// Counts the bytes of the arriving record.
    fn count(&mut self, budget: &Budget) {
        let more = self.assembler.held().saturating_sub(self.counted);
        if more > 0 {
            budget.add(Account::Arriving, more);
            self.counted += more;
        }
    }

    /// Drops everything, and returns the memory. The caller updates the budget.
    pub(super) fn clear(&mut self) -> Vec<u8> {
        let mut assembler = Assembler::new(self.record_bytes);
        std::mem::swap(&mut assembler, &mut self.assembler);
        self.counted = 0;
        assembler.move_to(Vec::new())
    }
}

/// Complete records.
pub(super) type Whole = VecDeque<Vec<u8>>;

/// The result of reading.
#[derive(Debug)]
pub(super) struct Received<'w> {
    pub(super) record: Option<Record<'w>>,
    /// Records after it.
    pub(super) more: Whole,
    /// Whether a part of the next record is held; none if nothing was read.
    pub(super) part: Option<bool>,
    /// The socket is empty; new bytes make a new event.
    pub(super) drained: bool,
    /// The client sends no more.
    pub(super) end: bool,
    /// The record needs memory that calls in progress hold.
    pub(super) starved: bool,
}

impl Received<'_> {
    pub(super) fn nothing() -> Received<'static> {
        Received {
            record: None,
            more: Whole::new(),
            part: None,
            drained: false,
            end: false,
            starved: false,
        }
    }
}

impl Connection {
    /// Reads until a record is complete or the socket is empty.
    pub(super) fn receive<'w>(
        &self,
        buffer: &'w mut Vec<u8>,
        hangup: bool,
    ) -> Result<Received<'w>, Ending> {
        let mut guard = self.input();
        let input = &mut *guard;
        let mut received = Received::nothing();
        let mut whole = Whole::new();
        let (tls, memory) = (self.tls.get(), &self.reactor.memory);
        for _ in 0..READS_MAX {
            // All bytes before the end of the stream are in the socket already; they may be few and hold no complete record.
            if input.assembler.arrived() > UNRESERVED_BYTES && !hangup {
                let missing = memory.buffer_bytes.saturating_sub(input.counted);
                if !self.reserve(missing) {
                    received.starved = true;
                    break;
                }
                if missing > 0 {
                    input.assembler.move_to(memory.buffer());
                    input.counted += missing;
                }
            }
            let large = tls.is_none() && input.assembler.has_room();
            let into = match large {
                true => input.assembler.room(),
                false => {
                    buffer.clear();
                    &mut *buffer
                }
            };
            let room = into.capacity() - into.len();
            match recv(&self.stream, spare_capacity(into), RecvFlags::empty()) {
                Ok((_, 0)) => received.end = true,
                Ok((_, len)) => {
                    received.drained = len < room;
                    if large {
                        let (record, rest) = input.assembler.filled(len);
                        if let Some(record) = record {
                            input.took(record, &self.budget, &mut whole);
                        }
                        input.feed(&rest, &self.budget, &mut whole)?;
                    } else if let Some(tls) = tls {
                        self.open(tls, buffer, input, &mut whole, &mut received)?;
                    } else if input.is_idle() && exactly_one(buffer, input.record_bytes).is_some() {
                        received.part = Some(false);
                        let record = exactly_one(buffer, input.record_bytes);
                        received.record = record.map(Record::Here);
                        return Ok(received);
                    } else {
                        input.feed(buffer, &self.budget, &mut whole)?;
                    }
                }
                Err(Errno::AGAIN) => received.drained = true,
                Err(Errno::INTR) => {}
                Err(_) => return Err(Ending::Gone),
            }
            if received.drained || received.end || !whole.is_empty() {
                break;
            }
        }
        // After the end, a partial record never becomes complete.
        if received.end && whole.is_empty() && !input.is_idle() {
            return Err(Ending::Gone);
        }
        received.part = Some(!input.is_idle());
        received.record = whole.pop_front().map(Record::Own);
        received.more = whole;
        Ok(received)
    }

    /// Decrypts bytes of TLS, and takes the contents.
    fn open(
        &self,
        tls: &Session,
        wire: &[u8],
        input: &mut Input,
        whole: &mut Whole,
        received: &mut Received<'_>,
    ) -> Result<(), Ending> {
        let opened = tls.open(wire, |bytes| input.feed(bytes, &self.budget, whole));
        let opened = match opened {
            Ok(opened) => opened,
            Err(Broken::Inside(ending)) => return Err(ending),
            Err(Broken::Tls(why)) => return Err(self.refuse_tls(tls, &why)),
        };
        if opened.established {
            self.established();
        }
        if opened.answers {
            self.finish(0, &[], 0);
        }
        input.part_of_tls = !opened.whole;
        received.end = opened.closed;
        Ok(())
    }

    /// Reserves memory, closing other connections if necessary. False if calls in progress hold all of it.
    pub(super) fn reserve(&self, bytes: usize) -> bool {
        if bytes == 0 || self.budget.try_add(Account::Arriving, bytes) {
            return true;
        }
        self.reactor.make_room(bytes, self);
        self.budget.try_add(Account::Arriving, bytes)
    }

    /// Frees the input of a closed connection.
    pub(super) fn forget_input(&self) {
        let freed = self.input().clear();
        self.reactor.memory.recycle(freed);
        self.budget.clear(Account::Arriving);
    }
}
