//! Reading a model's text. Every error has a file, a line and a column.

use super::Model;
use super::words::{
    self, Allocate, Append, Classes, Demand, Heuristic, Hole, Rename, Rule, Scope, Truncate,
    Unknown, Vocabulary,
};
use serde::Deserialize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// Longest chain of models that extend one another.
const EXTENDS_MAX: usize = 16;
/// Largest unit.
const UNIT_MAX: u64 = 1 << 30;

/// A model that cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{place}: {message}")]
pub struct ModelError {
    /// File, line and column.
    pub place: String,
    /// The error.
    pub message: String,
}

impl ModelError {
    pub(super) fn unknown_model(name: &str) -> ModelError {
        let names: Vec<&str> = Model::names().collect();
        ModelError {
            place: format!("model '{name}'"),
            message: format!(
                "unknown; there are {}, or give the path of a TOML file",
                names.join(", ")
            ),
        }
    }

    pub(super) fn file(path: &Path, error: &std::io::Error) -> ModelError {
        ModelError {
            place: path.display().to_string(),
            message: error.to_string(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Units {
    unit: Spanned<u64>,
    tear: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Raw {
    name: Option<String>,
    version: Option<u32>,
    options: Option<String>,
    about: Option<String>,
    calibrated: Option<String>,
    extends: Option<Spanned<String>>,
    data: Option<Units>,
    append: Option<Spanned<String>>,
    hole: Option<Spanned<String>>,
    rename: Option<Spanned<String>>,
    truncate: Option<Spanned<String>>,
    allocate: Option<Spanned<String>>,
    sync_jumps: Option<bool>,
    order: Option<Vec<Spanned<String>>>,
    call: Option<Vec<Spanned<String>>>,
    fsync: Option<Vec<Spanned<String>>>,
    fdatasync: Option<Vec<Spanned<String>>>,
    fsync_dir: Option<Vec<Spanned<String>>>,
    sync: Option<Vec<Spanned<String>>>,
    sync_file_range: Option<Vec<Spanned<String>>>,
    also: Option<Vec<Spanned<String>>>,
}

/// A text with its name, for the positions of errors.
struct Source<'a> {
    text: &'a str,
    name: &'a str,
}

impl Source<'_> {
    fn error(&self, offset: usize, message: impl Into<String>) -> ModelError {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        ModelError {
            place: format!("{}:{line}:{column}", self.name),
            message: message.into(),
        }
    }

    /// Position of the word: one after the quote.
    fn unknown(&self, span: Range<usize>, unknown: &Unknown) -> ModelError {
        self.error(span.start + 1 + unknown.at, unknown.message.as_str())
    }

    fn one<T: Copy>(
        &self,
        value: Option<&Spanned<String>>,
        words: Vocabulary<T>,
        else_: T,
    ) -> Result<T, ModelError> {
        let Some(value) = value else {
            return Ok(else_);
        };
        words::lookup(words, value.get_ref()).map_err(|u| self.unknown(value.span(), &u))
    }

    fn list<T>(
        &self,
        value: Option<&Vec<Spanned<String>>>,
        read: impl Fn(&str) -> Result<T, Unknown>,
        else_: Vec<T>,
    ) -> Result<Vec<T>, ModelError> {
        let Some(value) = value else {
            return Ok(else_);
        };
        let each = value.iter();
        each.map(|v| read(v.get_ref()).map_err(|u| self.unknown(v.span(), &u)))
            .collect()
    }
}

/// A model without any guarantee.
fn nothing(name: &str) -> Model {
    Model {
        name: name.to_owned(),
        version: 1,
        options: String::new(),
        about: String::new(),
        calibrated: String::new(),
        unit: 4096,
        tear: 512,
        append: Append::Any,
        hole: Hole::Zeros,
        rename: Rename::Atomic,
        truncate: Truncate::Atomic,
        allocate: Allocate::Room,
        sync_jumps: false,
        lying_disk: false,
        order: Vec::new(),
        call: Vec::new(),
        fsync: Vec::new(),
        fdatasync: Vec::new(),
        fsync_dir: Vec::new(),
        sync: Vec::new(),
        sync_file_range: Vec::new(),
        also: Vec::new(),
    }
}

/// Reads a model. `name` is the name of the text in errors; a path lets `extends` find neighbours.
///
/// # Errors
/// The first thing that is wrong, with line and column.
pub fn parse(text: &str, name: &str, path: Option<&Path>) -> Result<Model, ModelError> {
    let mut seen = Vec::new();
    let file = path.map(|p| p.canonicalize().unwrap_or_else(|_| p.to_owned()));
    seen.push(file.unwrap_or_else(|| PathBuf::from(name)));
    read(text, name, path, &mut seen)
}

fn read(
    text: &str,
    name: &str,
    path: Option<&Path>,
    seen: &mut Vec<PathBuf>,
) -> Result<Model, ModelError> {
    let source = Source { text, name };
    let raw: Raw = toml::from_str(text).map_err(|e| {
        let at = e.span().map_or(0, |s| s.start);
        source.error(at, e.message())
    })?;
    let base = match &raw.extends {
        Some(other) => extended(&source, other, path, seen)?,
        None => nothing(name),
    };
    let demand = |p: &str| words::lookup(words::DEMANDS, p);
    let extends = raw.extends.is_some();
    let (unit, tear) = match &raw.data {
        None => (base.unit, base.tear),
        Some(units) => {
            let unit = *units.unit.get_ref();
            let tear = units.tear.as_ref().map_or(unit, |t| *t.get_ref());
            if !unit.is_power_of_two() || unit > UNIT_MAX {
                let why =
                    format!("a unit of {unit} bytes: it must be a power of two, at most 1 GiB");
                return Err(source.error(units.unit.span().start, why));
            }
            let at = units.tear.as_ref().map_or(0, |t| t.span().start);
            if tear == 0 || tear > unit || unit % tear != 0 {
                let why = format!(
                    "contradiction: a unit of {unit} bytes does not consist of whole pieces of {tear} bytes"
                );
                return Err(source.error(at, why));
            }
            (unit, tear)
        }
    };
    let model = Model {
        name: raw.name.clone().unwrap_or_else(|| short(name)),
        version: raw.version.unwrap_or(1),
        options: raw.options.clone().unwrap_or_default(),
        about: raw.about.clone().unwrap_or_default(),
        // A variant does not inherit the calibration of its base.
        calibrated: raw.calibrated.clone().unwrap_or_default(),
        unit,
        tear,
        append: source.one(raw.append.as_ref(), words::APPENDS, base.append)?,
        hole: source.one(raw.hole.as_ref(), words::HOLES, base.hole)?,
        rename: source.one(raw.rename.as_ref(), words::RENAMES, base.rename)?,
        truncate: source.one(raw.truncate.as_ref(), words::TRUNCATES, base.truncate)?,
        allocate: source.one(raw.allocate.as_ref(), words::ALLOCATES, base.allocate)?,
        sync_jumps: raw.sync_jumps.unwrap_or(base.sync_jumps),
        lying_disk: false,
        order: source.list(raw.order.as_ref(), words::rule, base.order)?,
        call: source.list(raw.call.as_ref(), demand, base.call)?,
        fsync: source.list(raw.fsync.as_ref(), demand, base.fsync)?,
        fdatasync: source.list(raw.fdatasync.as_ref(), demand, base.fdatasync)?,
        fsync_dir: source.list(raw.fsync_dir.as_ref(), demand, base.fsync_dir)?,
        sync: source.list(raw.sync.as_ref(), demand, base.sync)?,
        sync_file_range: source.list(raw.sync_file_range.as_ref(), demand, base.sync_file_range)?,
        also: source.list(
            raw.also.as_ref(),
            |p| words::lookup::<Heuristic>(words::HEURISTICS, p),
            base.also,
        )?,
    };
    if !extends && raw.data.is_none() {
        return Err(source.error(0, "'data = { unit = BYTES, tear = BYTES }' is missing"));
    }
    contradictions(&source, &raw, &model)?;
    Ok(model)
}

/// Name of a model without one: that of its file.
fn short(name: &str) -> String {
    let stem = Path::new(name).file_stem();
    stem.map_or_else(|| name.to_owned(), |s| s.to_string_lossy().into_owned())
}

fn extended(
    source: &Source<'_>,
    other: &Spanned<String>,
    path: Option<&Path>,
    seen: &mut Vec<PathBuf>,
) -> Result<Model, ModelError> {
    let at = other.span().start;
    let name = other.get_ref();
    let is_file = name.contains('/') || name.ends_with(".toml");
    let (key, text, file) = if is_file {
        let beside = path.and_then(Path::parent).unwrap_or(Path::new("."));
        let file = beside.join(name);
        let text = std::fs::read_to_string(&file)
            .map_err(|e| source.error(at, format!("{}: {e}", file.display())))?;
        (
            file.canonicalize().unwrap_or_else(|_| file.clone()),
            text,
            Some(file),
        )
    } else {
        let text = Model::text(name)
            .ok_or_else(|| source.error(at, ModelError::unknown_model(name).to_string()))?;
        (PathBuf::from(name), text.to_owned(), None)
    };
    if seen.contains(&key) || seen.len() >= EXTENDS_MAX {
        let mut chain: Vec<String> = seen.iter().map(|p| p.display().to_string()).collect();
        chain.push(key.display().to_string());
        return Err(source.error(at, format!("cycle: {}", chain.join(" extends "))));
    }
    seen.push(key);
    read(&text, name, file.as_deref(), seen)
}

/// Rules that cannot hold together.
fn contradictions(source: &Source<'_>, raw: &Raw, model: &Model) -> Result<(), ModelError> {
    let place = |i: usize| {
        let rule = raw.order.as_ref().and_then(|o| o.get(i));
        rule.or(raw.append.as_ref()).map_or(0, |s| s.span().start)
    };
    for (i, rule) in model.order.iter().enumerate() {
        let binds =
            |before: Classes, after: Classes| rule.before.has(before) && rule.after.has(after);
        // Within one write the size cannot be before and after its data. 'all before all' orders by time and binds no
        // write in itself.
        let size_first = binds(Classes::SIZE, Classes::DATA) && rule.before != rule.after;
        if size_first && rule.scope != Scope::Directory && model.append != Append::Any {
            return Err(source.error(
                place(i),
                "contradiction: an append's size cannot be before its data; 'append' says the opposite",
            ));
        }
        let twice = model.order.iter().take(i).any(|r: &Rule| r == rule);
        if twice {
            return Err(source.error(place(i), "the same rule is there twice"));
        }
        if rule.scope == Scope::Directory
            && !(rule.before.has(Classes::ENTRY) && rule.after.has(Classes::ENTRY))
        {
            return Err(source.error(
                place(i),
                "contradiction: only entries and metadata have a directory in common",
            ));
        }
    }
    if model.append == Append::Together && model.hole == Hole::Garbage {
        let at = raw
            .hole
            .as_ref()
            .or(raw.append.as_ref())
            .map_or(0, |s| s.span().start);
        return Err(source.error(
            at,
            "contradiction: if data and size appear together, no unit is unwritten; 'hole' cannot be garbage",
        ));
    }
    let file_only = [(&model.fsync_dir, &raw.fsync_dir), (&model.sync, &raw.sync)];
    for (demands, raw) in file_only {
        for (i, d) in demands.iter().enumerate() {
            if matches!(d, Demand::OfFile(c) if c.meets(Classes::DATA)) {
                let at = raw
                    .as_ref()
                    .and_then(|r| r.get(i))
                    .map_or(0, |s| s.span().start);
                return Err(source.error(
                    at,
                    "contradiction: a directory has no data; 'sync' has no file",
                ));
            }
        }
    }
    Ok(())
}
