//! The order of the steps that replace a file's content (DFSCQ, figure 1), without
//! any input or output.
//!
//! Invariants: the file's name is touched by [`Steps::rename`] alone; that comes after the
//! new content is durable, and [`Update::commit`] returns after the new name is. If a step
//! before it fails, the temporary file goes away with the [`Update`].

/// Steps of a replacement, on any kind of storage.
pub trait Steps {
    /// Error of a step.
    type Error;
    /// Makes the temporary file, empty, in the directory of the file that it will replace.
    fn create(&mut self) -> Result<(), Self::Error>;
    /// Adds to the end of the temporary file.
    fn write(&mut self, data: &[u8]) -> Result<(), Self::Error>;
    /// Makes the temporary file durable: content and attributes.
    fn sync_file(&mut self) -> Result<(), Self::Error>;
    /// Gives the temporary file the name of the file that it replaces.
    fn rename(&mut self) -> Result<(), Self::Error>;
    /// Makes that name durable.
    fn sync_directory(&mut self) -> Result<(), Self::Error>;
    /// Removes the temporary file.
    fn remove(&mut self);
}

/// A replacement under way. Dropped before [`Update::commit`], it leaves everything as it was.
#[derive(Debug)]
pub struct Update<S: Steps> {
    steps: S,
    /// The temporary file is there, under its own name.
    pending: bool,
}

impl<S: Steps> Update<S> {
    /// Makes the temporary file.
    ///
    /// # Errors
    /// That of the step.
    pub fn begin(mut steps: S) -> Result<Update<S>, S::Error> {
        steps.create()?;
        Ok(Update {
            steps,
            pending: true,
        })
    }

    /// Adds to the new content.
    ///
    /// # Errors
    /// That of the step.
    pub fn write(&mut self, data: &[u8]) -> Result<(), S::Error> {
        self.steps.write(data)
    }

    /// Puts the new content in the place of the old. When this returns, it is durable.
    ///
    /// # Errors
    /// That of the step that failed. Behind the renaming, the new content is in place, but
    /// a crash may still bring back the old.
    pub fn commit(mut self) -> Result<(), S::Error> {
        self.steps.sync_file()?;
        self.steps.rename()?;
        self.pending = false;
        self.steps.sync_directory()
    }
}

impl<S: Steps> Drop for Update<S> {
    fn drop(&mut self) {
        if self.pending {
            self.steps.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    struct Noted {
        done: Rc<RefCell<Vec<&'static str>>>,
        fails: &'static str,
    }

    impl Noted {
        fn step(&self, name: &'static str) -> Result<(), &'static str> {
            self.done.borrow_mut().push(name);
            if self.fails == name {
                Err(name)
            } else {
                Ok(())
            }
        }
    }

    impl Steps for Noted {
        type Error = &'static str;
        fn create(&mut self) -> Result<(), &'static str> {
            self.step("create")
        }
        fn write(&mut self, _data: &[u8]) -> Result<(), &'static str> {
            self.step("write")
        }
        fn sync_file(&mut self) -> Result<(), &'static str> {
            self.step("sync file")
        }
        fn rename(&mut self) -> Result<(), &'static str> {
            self.step("rename")
        }
        fn sync_directory(&mut self) -> Result<(), &'static str> {
            self.step("sync directory")
        }
        fn remove(&mut self) {
            let _ = self.step("remove");
        }
    }

    fn run(fails: &'static str) -> (Result<(), &'static str>, Vec<&'static str>) {
        let done = Rc::default();
        let steps = Noted {
            done: Rc::clone(&done),
            fails,
        };
        let result = Update::begin(steps).and_then(|mut update| {
            update.write(b"x")?;
            update.commit()
        });
        let done = done.borrow().clone();
        (result, done)
    }

    #[test]
    fn the_name_changes_between_the_two_syncs() {
        let all = ["create", "write", "sync file", "rename", "sync directory"];
        assert_eq!(run(""), (Ok(()), all.to_vec()));
    }

    #[test]
    fn a_failure_before_the_rename_is_done_leaves_no_temporary_file() {
        for (fails, last) in [
            ("write", "remove"),
            ("sync file", "remove"),
            ("rename", "remove"),
        ] {
            let (result, done) = run(fails);
            assert_eq!(result, Err(fails));
            assert_eq!(done.last(), Some(&last));
            assert!(!done.contains(&"sync directory"));
        }
        assert_eq!(run("create").1, ["create"]);
        assert_eq!(run("sync directory").1.last(), Some(&"sync directory"));
    }
}
