//! The lines of operations, transactions and records, for `oracle streams`.

use super::Event;
use crate::probe::{Decision, OpName, Part};
use crate::{Access, Object};
use std::collections::HashMap;
use std::fmt::Write;

/// Everything that the core decided about operations, `trace` first.
pub(super) fn lines(events: &[Event]) -> String {
    let mut lines = "trace\n".to_owned();
    let mut objects: HashMap<Object, usize> = HashMap::new();
    for event in events {
        let Event::Decided(decision) = event else {
            continue;
        };
        match decision {
            Decision::Committed {
                name,
                stream,
                parts,
            } => {
                let _ = write!(lines, "op {} {}", name.number, stream.0);
                for part in parts {
                    let _ = match part {
                        Part::Object(object, access) => {
                            let next = objects.len();
                            let object = *objects.entry(*object).or_insert(next);
                            match access {
                                Access::Exclusive => write!(lines, " x:{object}"),
                                Access::Shared => write!(lines, " s:{object}"),
                            }
                        }
                        Part::Bits(at, first, count) => write!(lines, " w:{at}:{first}:{count}"),
                        Part::Sum(at, byte) => write!(lines, " a:{at}:{byte}"),
                        Part::Newest(at, first, count) => write!(lines, " t:{at}:{first}:{count}"),
                        Part::Life(at) => write!(lines, " e:{at}"),
                    };
                }
                lines.push('\n');
            }
            Decision::Frozen(names) => named(&mut lines, "close", names),
            Decision::Laid { names, .. } => named(&mut lines, "lay", names),
            _ => {}
        }
    }
    lines
}

fn named(lines: &mut String, what: &str, names: &[OpName]) {
    lines.push_str(what);
    for name in names {
        let _ = write!(lines, " {}", name.number);
    }
    lines.push('\n');
}
