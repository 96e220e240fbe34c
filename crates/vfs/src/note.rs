//! Note of a front end beside a change, durable exactly if the change is.
//!
//! A front end makes a note for a call and gives it to the file system with each operation of that call
//! ([`Caller::note`](crate::Caller::note)). The file system numbers the operations that it commits. When it makes one durable,
//! it asks for the content to keep with it: only the last operation of a call that is whole has some, so a note never lasts
//! without all of its call. This content may still be replaced until then.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
struct State {
    bytes: Vec<u8>,
    operations: u32,
    whole: bool,
}

/// See the module's header.
#[derive(Debug, Default)]
pub struct Note(Mutex<State>);

impl Note {
    /// The note of a call that is one operation, unless [`in_parts`](Note::in_parts) says otherwise.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Arc<Note> {
        Arc::new(Note(Mutex::new(State {
            bytes,
            operations: 0,
            whole: true,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The call may take several operations, or fail after one: nothing is kept before [`whole`](Note::whole).
    pub fn in_parts(&self) {
        self.state().whole = false;
    }

    /// All operations of the call are committed in memory.
    pub fn whole(&self) {
        self.state().whole = true;
    }

    /// Replaces the content to keep.
    pub fn replace(&self, bytes: Vec<u8>) {
        self.state().bytes = bytes;
    }

    /// For file systems: an operation of the call is about to be committed. Returns its number.
    pub fn joins(&self) -> u32 {
        let mut state = self.state();
        state.operations += 1;
        state.operations
    }

    /// For file systems: the content to keep with an operation that becomes durable.
    #[must_use]
    pub fn of(&self, operation: u32) -> Option<Vec<u8>> {
        let state = self.state();
        (state.whole && state.operations == operation).then(|| state.bytes.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_goes_with_the_last_operation_of_a_whole_call() {
        let note = Note::new(vec![1]);
        assert_eq!(note.joins(), 1);
        assert_eq!(note.of(1), Some(vec![1]), "one operation");
        note.replace(vec![2]);
        assert_eq!(note.of(1), Some(vec![2]));
        note.in_parts();
        assert_eq!(note.of(1), None);
        assert_eq!(note.joins(), 2);
        assert_eq!(note.of(2), None, "another may come");
        note.whole();
        assert_eq!((note.of(1), note.of(2)), (None, Some(vec![2])));
    }
}
