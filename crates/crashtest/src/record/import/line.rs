//! One line of a log: a call that returned, with its arguments.

use std::collections::HashMap;

/// A call.
#[derive(Debug)]
pub(super) struct Line<'a> {
    pub(super) thread: u32,
    pub(super) call: &'a str,
    arguments: Vec<&'a str>,
    /// Strings among the arguments, decoded, by argument.
    strings: Vec<Vec<Vec<u8>>>,
    pub(super) result: i64,
    /// The number of the line on which it began, if that was an earlier one.
    pub(super) begun: Option<usize>,
}

/// An argument.
#[derive(Clone, Copy)]
pub(super) struct Argument<'l> {
    text: &'l str,
    strings: &'l [Vec<u8>],
}

/// Calls that began on an earlier line, by thread: the line's number, and its part of the call.
#[derive(Default)]
pub(super) struct Lines {
    begun: HashMap<u32, (usize, String)>,
    whole: String,
}

impl Lines {
    /// The call that a line ends, if it ends one. Lines are numbered by the caller.
    pub(super) fn next(&mut self, number: usize, text: &[u8]) -> Result<Option<Line<'_>>, String> {
        let mut begun = None;
        let text = std::str::from_utf8(text)
            .map_err(|_| "no log of strace with -xx: it holds raw bytes".to_owned())?;
        let Some((thread, rest)) = text.split_once(' ') else {
            return Ok(None);
        };
        let thread: u32 = thread.parse().map_err(|_| {
            "the line does not begin with a process: run strace with -f -o".to_owned()
        })?;
        let Some((_, rest)) = rest.trim_start().split_once(' ') else {
            return Ok(None);
        };
        if rest.starts_with("---") || rest.starts_with("+++") {
            return Ok(None);
        }
        if let Some(begin) = rest.strip_suffix(" <unfinished ...>") {
            // A call that ends the process does not return.
            if !begin.starts_with("exit_group(") {
                self.begun.insert(thread, (number, begin.to_owned()));
                return Ok(None);
            }
            self.whole = format!("{begin}) = ?");
        } else if let Some((_, end)) = rest
            .strip_prefix("<... ")
            .and_then(|r| r.split_once(" resumed>"))
        {
            let begin = self.begun.remove(&thread);
            begun = begin.as_ref().map(|(number, _)| *number);
            let begin = begin.map_or_else(String::new, |(_, begin)| begin);
            self.whole = format!("{begin}{end}");
        } else {
            rest.clone_into(&mut self.whole);
        }
        Ok(parsed(thread, &self.whole, begun))
    }
}

fn parsed(thread: u32, text: &str, begun: Option<usize>) -> Option<Line<'_>> {
    let (call, rest) = text.split_once('(')?;
    let (arguments, result) = rest.rsplit_once(") ")?;
    let result = result.trim_start().strip_prefix("= ")?;
    let digits = result
        .find(|c: char| !c.is_ascii_digit() && c != '-')
        .unwrap_or(result.len());
    // '?': the call did not return, or its result is not known.
    let result = match &result[..digits] {
        "" => 0,
        number => number.parse().ok()?,
    };
    let arguments = split(arguments);
    let strings = arguments.iter().map(|a| strings(a)).collect();
    Some(Line {
        thread,
        call,
        arguments,
        strings,
        result,
        begun,
    })
}

/// Arguments, separated by commas that are in no string, structure or list.
fn split(text: &str) -> Vec<&str> {
    let (mut depth, mut quoted, mut from) = (0, false, 0);
    let mut all = Vec::new();
    for (i, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            _ if quoted => {}
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                all.push(text[from..i].trim());
                from = i + 1;
            }
            _ => {}
        }
    }
    all.push(text[from..].trim());
    all
}

/// The strings in an argument; for a descriptor, its path.
fn strings(text: &str) -> Vec<Vec<u8>> {
    if !text.contains('"') {
        let path = text.split_once('<').and_then(|(_, p)| p.split_once('>'));
        return path.map(|(p, _)| decoded(p)).into_iter().collect();
    }
    let quoted = text.split('"').skip(1).step_by(2);
    quoted.map(decoded).collect()
}

/// `\x61\x62` as bytes.
fn decoded(text: &str) -> Vec<u8> {
    let digits = text.split("\\x").filter(|d| !d.is_empty());
    digits
        .filter_map(|d| u8::from_str_radix(d.get(..2)?, 16).ok())
        .collect()
}

impl Line<'_> {
    pub(super) fn at(&self, i: usize) -> Argument<'_> {
        Argument {
            text: self.arguments.get(i).copied().unwrap_or_default(),
            strings: self.strings.get(i).map_or(&[], Vec::as_slice),
        }
    }

    /// Whether the call makes a process or a thread, which is its result.
    pub(super) fn makes_a_process(&self) -> bool {
        ["clone", "clone3", "fork", "vfork"].contains(&self.call)
    }

    /// Whether the new process shares the caller's descriptors.
    pub(super) fn shares_descriptors(&self) -> bool {
        self.call != "vfork" && (self.has("CLONE_FILES") || self.has("CLONE_THREAD"))
    }

    /// The working directory, if the call names it.
    pub(super) fn working_directory(&self) -> Option<&[u8]> {
        let at = self
            .arguments
            .iter()
            .position(|a| a.starts_with("AT_FDCWD<"))?;
        self.at(at).path()
    }

    /// Whether a word is in one of the arguments.
    pub(super) fn has(&self, word: &str) -> bool {
        self.arguments.iter().any(|a| a.contains(word))
    }

    pub(super) fn number(&self, i: usize) -> Option<i64> {
        self.at(i).text.parse().ok()
    }

    pub(super) fn last_number(&self) -> Option<i64> {
        self.arguments.last()?.parse().ok()
    }

    pub(super) fn octal(&self, i: usize) -> u16 {
        u16::from_str_radix(self.at(i).text, 8).unwrap_or(0o644)
    }

    /// The directory, and the position of the path, of a call that has both if it has this name.
    pub(super) fn dir_and_path(&self, with_dir: &str) -> (Option<&[u8]>, usize) {
        match self.call == with_dir {
            true => (self.dir(0), 1),
            false => (None, 0),
        }
    }

    fn dir(&self, i: usize) -> Option<&[u8]> {
        self.at(i).path()
    }

    /// The bytes of a write.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.at(1).strings.concat()
    }
}

impl<'l> Argument<'l> {
    pub(super) fn text(self) -> &'l str {
        self.text
    }

    pub(super) fn has(self, word: &str) -> bool {
        self.text.contains(word)
    }

    /// The string that the argument is.
    pub(super) fn string(self) -> Option<&'l [u8]> {
        self.strings.first().map(Vec::as_slice)
    }

    /// A descriptor: `3</path>`.
    pub(super) fn fd(self) -> Option<i64> {
        let digits = self
            .text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(self.text.len());
        self.text[..digits].parse().ok()
    }

    /// The path of a descriptor, or of the working directory.
    pub(super) fn path(self) -> Option<&'l [u8]> {
        self.strings.first().map(Vec::as_slice)
    }
}
