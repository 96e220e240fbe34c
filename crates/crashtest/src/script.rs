//! Runs for tests, written call by call, with names in place of numbers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::effects::{Ino, Node, ROOT, Run, Step, What};
use std::collections::HashMap;
use std::sync::Arc;
use steadfast_vfs::FileKind;

/// A run that is being written.
#[derive(Default)]
pub(crate) struct Script {
    run: Run,
    names: HashMap<String, Ino>,
    next: Ino,
}

impl Script {
    pub(crate) fn new() -> Script {
        Script {
            next: ROOT + 1,
            ..Script::default()
        }
    }

    /// Makes all calls so far durable, and no part of the run.
    pub(crate) fn durable(mut self) -> Script {
        let sync = crate::models::Model::shipped("sync").unwrap();
        let effects = crate::effects::Effects::new(&self.run, &sync);
        self.run = Run {
            base: effects.disk(&effects.prefix(effects.steps())),
            steps: Vec::new(),
        };
        self
    }

    pub(crate) fn run(self) -> Run {
        self.run
    }

    pub(crate) fn ino(&self, path: &str) -> Ino {
        if path == "." { ROOT } else { self.names[path] }
    }

    fn at(&self, path: &str) -> (Ino, Arc<[u8]>) {
        match path.rsplit_once('/') {
            Some((dir, name)) => (self.ino(dir), Arc::from(name.as_bytes())),
            None => (ROOT, Arc::from(path.as_bytes())),
        }
    }

    fn push(mut self, what: What, text: String) -> Script {
        let number = self.run.steps.len() as u64;
        self.run.steps.push(Step {
            number,
            what,
            text,
            location: None,
            thread: 0,
            stack: 0,
        });
        self
    }

    fn make_kind(mut self, path: &str, kind: FileKind) -> Script {
        let (ino, at) = (self.next, self.at(path));
        self.next += 1;
        self.names.insert(path.to_owned(), ino);
        self.push(
            What::Make {
                at,
                ino,
                node: Node::new(kind, 0o755),
            },
            format!("create {path}"),
        )
    }

    pub(crate) fn make(self, path: &str) -> Script {
        self.make_kind(path, FileKind::Regular)
    }

    pub(crate) fn mkdir(self, path: &str) -> Script {
        self.make_kind(path, FileKind::Directory)
    }

    pub(crate) fn write(self, path: &str, offset: u64, bytes: &[u8]) -> Script {
        let ino = self.ino(path);
        self.push(
            What::Write {
                ino,
                offset,
                bytes: bytes.into(),
            },
            format!("write {path}"),
        )
    }

    pub(crate) fn truncate(self, path: &str, size: u64) -> Script {
        let ino = self.ino(path);
        self.push(What::Truncate { ino, size }, format!("truncate {path}"))
    }

    pub(crate) fn allocate(self, path: &str, size: u64) -> Script {
        let ino = self.ino(path);
        self.push(What::Allocate { ino, size }, format!("fallocate {path}"))
    }

    pub(crate) fn punch(self, path: &str, offset: u64, len: u64) -> Script {
        let ino = self.ino(path);
        self.push(What::Zero { ino, offset, len }, format!("punch {path}"))
    }

    pub(crate) fn chmod(self, path: &str, perm: u16) -> Script {
        let ino = self.ino(path);
        self.push(
            What::Attr {
                ino,
                perm: Some(perm),
                uid: None,
                gid: None,
            },
            format!("chmod {path}"),
        )
    }

    pub(crate) fn rename(mut self, from: &str, to: &str) -> Script {
        let (source, target) = (self.at(from), self.at(to));
        if let Some(ino) = self.names.remove(from) {
            self.names.insert(to.to_owned(), ino);
        }
        self.push(
            What::Rename {
                from: source,
                to: target,
                exchange: false,
            },
            format!("rename {from} → {to}"),
        )
    }

    pub(crate) fn unlink(self, path: &str) -> Script {
        let at = self.at(path);
        self.push(What::Remove { at }, format!("unlink {path}"))
    }

    pub(crate) fn close(self, path: &str) -> Script {
        let ino = self.ino(path);
        self.push(What::Close { ino }, format!("close {path}"))
    }

    pub(crate) fn fsync(self, path: &str) -> Script {
        let ino = self.ino(path);
        self.push(
            What::Fsync {
                ino,
                data_only: false,
            },
            format!("fsync {path}"),
        )
    }

    pub(crate) fn fdatasync(self, path: &str) -> Script {
        let ino = self.ino(path);
        self.push(
            What::Fsync {
                ino,
                data_only: true,
            },
            format!("fdatasync {path}"),
        )
    }

    pub(crate) fn ack(self, text: &str) -> Script {
        self.push(
            What::Ack {
                text: text.to_owned(),
            },
            format!("acknowledge '{text}'"),
        )
    }
}
