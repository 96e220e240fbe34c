//! The checkers that are extracted from the proofs, as processes that read traces.
//!
//! `STEADFAST_ORACLE` names the program; without it, `proofs/oracle/build` makes it once (it
//! needs Coq and OCaml, see `proofs/README.md`).

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// Text that is kept back before it is handed over.
const BUFFER_BYTES: usize = 1 << 16;

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        if let Some(path) = std::env::var_os("STEADFAST_ORACLE") {
            let path = PathBuf::from(path);
            assert!(
                path.is_file(),
                "STEADFAST_ORACLE names {}, which is not there: proofs/check --oracle DIR builds it",
                path.display()
            );
            return path;
        }
        let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proofs/oracle/build");
        let into = Path::new(env!("CARGO_TARGET_TMPDIR")).join("oracle");
        let built = Command::new(&build).arg(&into).status();
        assert!(
            built.is_ok_and(|status| status.success()),
            "{} failed: it needs coqc with stdpp, and ocamlfind; or name the oracle in STEADFAST_ORACLE",
            build.display()
        );
        into.join("oracle")
    })
}

/// Final verdict of a checker.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) accepted: bool,
    pub(crate) said: String,
}

/// A checker that reads lines.
pub(crate) struct Oracle {
    child: Child,
    text: String,
}

impl Oracle {
    pub(crate) fn start(mode: &str) -> Oracle {
        let child = Command::new(program())
            .arg(mode)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Oracle {
            child,
            text: String::new(),
        }
    }

    pub(crate) fn say(&mut self, lines: &str) {
        self.text.push_str(lines);
        if self.text.len() >= BUFFER_BYTES {
            self.hand_over();
        }
    }

    fn hand_over(&mut self) {
        let to = self.child.stdin.as_mut().unwrap();
        // A checker that has refused a trace reads no more; it says so in the end.
        let _ = to.write_all(self.text.as_bytes());
        self.text.clear();
    }

    pub(crate) fn finish(mut self) -> Verdict {
        self.hand_over();
        drop(self.child.stdin.take());
        let mut said = String::new();
        let from = self.child.stdout.as_mut().unwrap();
        from.read_to_string(&mut said).unwrap();
        let status = self.child.wait().unwrap();
        Verdict {
            accepted: status.success(),
            said: said.trim().into(),
        }
    }
}
