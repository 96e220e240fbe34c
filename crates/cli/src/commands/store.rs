//! `steadfast store`: commands for volumes on object stores.

mod copy;
mod cost;
mod promote;

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use steadfast_store::{
    Compression, Found, OwnerState, PinKind, ProbeOptions, ProbeReport, State, StoreDevice, Usage,
};

use crate::failure::{Code, Failure};
use crate::progress::Meter;
use crate::volume::{Access, store};
use crate::{size, text};

/// The explanation of URLs, for `--help` and the manual.
const URLS: &str = "\
A URL is s3://BUCKET/PREFIX for S3 and compatible stores, az://CONTAINER/PREFIX for Azure Blob Storage, \
gs://BUCKET/PREFIX for Google Cloud Storage, or file:///DIRECTORY for a directory on this machine. \
Credentials, region and endpoint are found as other tools find them. S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, \
AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL. Azure: AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY or \
AZURE_STORAGE_SAS_KEY, AZURE_STORAGE_ENDPOINT. Google: GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS (files). \
Without them, the machine's role. The key file of an encrypted volume is that of \
--key-file, or the one that STEADFAST_KEY_FILE names.";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Try whether a store keeps the rules that a volume needs, also when many writers race
    Probe(ProbeArgs),
    /// Show what a volume is, which process has it, and what it holds
    Info(InfoArgs),
    /// Read every object that a volume or its snapshots need, and compare its hash
    Check(CheckArgs),
    /// Collect garbage of a volume that is not mounted
    Gc(GcArgs),
    /// Show the costs of a volume, by kinds of objects and requests
    Cost(cost::Args),
    /// Snapshots: make, list, delete
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Make a writable volume from a snapshot, in constant time
    Clone(CloneArgs),
    /// Make a clone independent of its parent: copy what it reads from the parent
    Promote(promote::Args),
    /// Copy a volume between stores, or to or from an image
    Copy(copy::Args),
    /// Fence the owner of a volume, and release it
    TakeOver(TakeOverArgs),
    /// After another machine took a volume over, put the flushes that only a cache has into a clone
    Salvage(SalvageArgs),
    /// Wrap the key of an encrypted volume with another key file
    Rekey(RekeyArgs),
}

/// A volume, and the access to it.
#[derive(Debug, clap::Args)]
pub(crate) struct Where {
    /// The address of a server that speaks the store's protocol (by default AWS_ENDPOINT_URL, AZURE_STORAGE_ENDPOINT
    /// or GOOGLE_BASE_URL)
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// The key file of an encrypted volume (by default STEADFAST_KEY_FILE)
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// The volume
    url: String,
}

impl Where {
    fn find(&self) -> Result<Found, Failure> {
        let access = store::access(self.endpoint.as_deref(), self.key_file.as_deref())?;
        store::find(self.url.trim_end_matches('/'), &access)
    }

    fn open(&self, take_over: bool) -> Result<StoreDevice, Failure> {
        let wishes = store::StoreSettings {
            take_over,
            timeout: Some(store::PATIENCE),
            endpoint: self.endpoint.clone(),
            key_file: self.key_file.clone(),
            ..store::StoreSettings::default()
        };
        let url = store::Url {
            url: self.url.trim_end_matches('/').to_owned(),
            snapshot: None,
        };
        store::open_disk(&url, Access::Change, &store::options(&wishes)?)
    }
}

#[derive(Debug, clap::Args)]
#[command(after_long_help = URLS)]
pub(crate) struct ProbeArgs {
    /// Addresses of the store; writers use several in turn
    #[arg(long, value_name = "URL")]
    endpoint: Vec<String>,
    /// Number of writers that race
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(2..=128))]
    writers: u16,
    /// Number of races of each kind
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=10000))]
    rounds: u16,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Show progress even if standard error is not a terminal
    #[arg(long)]
    progress: bool,
    /// URL of a future volume
    url: String,
}

#[derive(Debug, clap::Args)]
#[command(after_long_help = URLS)]
pub(crate) struct InfoArgs {
    #[command(flatten)]
    place: Where,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// Show progress even if standard error is not a terminal
    #[arg(long)]
    progress: bool,
    #[command(flatten)]
    place: Where,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GcArgs {
    /// Move live blocks until this part of the objects' content is live
    #[arg(long, value_name = "PERCENT", default_value_t = 80, value_parser = clap::value_parser!(u8).range(0..=95))]
    live: u8,
    /// Also list the store, and show objects that nothing names: late writes of machines that died
    #[arg(long)]
    sweep: bool,
    /// With --sweep: delete them
    #[arg(long, requires = "sweep")]
    delete: bool,
    #[command(flatten)]
    place: Where,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Keep the last published checkpoint under a name; an unmounted volume is whole in it
    Create(NamedArgs),
    /// List snapshots, and clones that read from this volume
    List(InfoArgs),
    /// Delete a snapshot; the next writer frees what it alone needs
    Delete(NamedArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct NamedArgs {
    #[command(flatten)]
    place: Where,
    /// The snapshot's name
    name: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CloneArgs {
    /// The address of a server that speaks the store's protocol (by default AWS_ENDPOINT_URL, AZURE_STORAGE_ENDPOINT
    /// or GOOGLE_BASE_URL)
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// The key file of an encrypted volume (by default STEADFAST_KEY_FILE)
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// The key file of the clone (by default that of the volume)
    #[arg(long, value_name = "FILE")]
    new_key_file: Option<PathBuf>,
    /// The snapshot
    #[arg(value_name = "URL@SNAPSHOT")]
    snapshot: String,
    /// URL of the new clone
    #[arg(value_name = "NEW-URL")]
    to: String,
}

/// The clone begins with the snapshot 'after-term-…', which the machine that took over has made, and gets the state
/// of the cache's last flush. The volume itself is not changed. The cache is empty afterwards.
#[derive(Debug, clap::Args)]
pub(crate) struct SalvageArgs {
    /// The cache device or file
    #[arg(long, value_name = "FILE")]
    cache: PathBuf,
    /// The key file of the clone (by default that of the volume)
    #[arg(long, value_name = "FILE")]
    new_key_file: Option<PathBuf>,
    /// If the cache is damaged, save the flushes before the damage
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    place: Where,
    /// URL of the new clone
    #[arg(value_name = "NEW-URL")]
    to: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TakeOverArgs {
    #[command(flatten)]
    place: Where,
}

/// Nothing else is written anew: an old copy of the object 'key' still opens with the old key file. If others may
/// know the volume's key itself, copy the files to a new volume.
#[derive(Debug, clap::Args)]
pub(crate) struct RekeyArgs {
    #[command(flatten)]
    place: Where,
    /// The key file that opens the volume from now on
    #[arg(long, value_name = "FILE")]
    new_key_file: PathBuf,
}

pub(crate) fn run(command: &Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Probe(args) => probe(args),
        Command::Info(args) => info(args),
        Command::Check(args) => check(args),
        Command::Gc(args) => collect(args),
        Command::Cost(args) => cost::run(args),
        Command::Snapshot(SnapshotCommand::Create(args)) => make_snapshot(args),
        Command::Snapshot(SnapshotCommand::List(args)) => list(args),
        Command::Snapshot(SnapshotCommand::Delete(args)) => {
            let found = args.place.find()?;
            found.delete_snapshot(&args.name).map_err(store::failure)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Clone(args) => clone(args),
        Command::Promote(args) => promote::run(args),
        Command::Copy(args) => copy::run(args),
        Command::TakeOver(args) => take_over(args),
        Command::Salvage(args) => salvage(args),
        Command::Rekey(args) => rekey(args),
    }
}

/// Prints notes on a store that passed.
pub(crate) fn notes(report: &ProbeReport) {
    for note in &report.notes {
        crate::failure::notice(note);
    }
}

/// The error for a store that is refused.
pub(crate) fn refusal(url: &str, report: &ProbeReport) -> Failure {
    let broken: Vec<String> = report
        .broken
        .iter()
        .map(|(rule, what)| format!("{rule}: {what}"))
        .collect();
    Failure::new(format!(
        "{url}: the store cannot be trusted with a volume: {}; 'steadfast store probe' tries it again",
        broken.join("; ")
    ))
}

fn probe(args: &ProbeArgs) -> Result<ExitCode, Failure> {
    let places = match &args.endpoint[..] {
        [] => vec![store::location(&args.url, None)?],
        endpoints => {
            let at = |endpoint: &String| store::location(&args.url, Some(endpoint));
            endpoints.iter().map(at).collect::<Result<Vec<_>, _>>()?
        }
    };
    let options = ProbeOptions {
        writers: usize::from(args.writers),
        rounds: usize::from(args.rounds),
    };
    let meter = Meter::new(args.progress);
    let report = steadfast_store::probe(&places, options, &mut |done, total| {
        meter.show("races", done, total);
    });
    drop(meter);
    let report = report.map_err(|e| Failure::new(e.to_string()))?;
    if args.json {
        let broken: Vec<serde_json::Value> = report
            .broken
            .iter()
            .map(|(rule, what)| serde_json::json!({ "rule": rule.to_string(), "what": what }))
            .collect();
        text::print_json(&serde_json::json!({
            "url": args.url,
            "good": report.is_good(),
            "broken": broken,
            "notes": report.notes,
            "writers": report.writers,
            "rounds": report.rounds,
            "create_races_lost": report.lost_races.0,
            "swap_races_lost": report.lost_races.1,
            "put_ms_p50": report.put_ms,
        }))?;
        return Ok(ExitCode::from(u8::from(!report.is_good())));
    }
    notes(&report);
    if !report.is_good() {
        return Err(refusal(&args.url, &report));
    }
    text::print(&format!(
        "{}: the store keeps the rules: {} rounds of {} writers that create, and as many that swap, had one winner each\n  \
         create of 8 KiB: {:.2} ms (p50)",
        args.url, report.rounds, report.writers, report.put_ms
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// What is shown of a volume.
#[derive(Serialize)]
struct Shown {
    url: String,
    uuid: String,
    format_version: u32,
    compression: Option<&'static str>,
    encrypted: bool,
    /// `store` or `cache`.
    flush: &'static str,
    unit_bytes: u64,
    volume_bytes: u64,
    made_unix_seconds: i64,
    parents: Vec<String>,
    /// `released`, `in-use`, `not-released` or `elsewhere`.
    state: &'static str,
    host: Option<String>,
    pid: Option<u32>,
    term: u64,
    head_version: u64,
    checkpoint_slot: u64,
    slots_after_checkpoint: u64,
    snapshots: u64,
    clones: u64,
    live_bytes: u64,
    held_bytes: u64,
    parents_bytes: u64,
    data_objects: u64,
    data_object_bytes: u64,
    map_objects: u64,
    map_object_bytes: u64,
    retired_objects: u64,
}

fn gather(place: &Where) -> Result<Shown, Failure> {
    let found = place.find()?;
    let state = found.state().map_err(store::failure)?;
    let usage = found.usage().map_err(store::failure)?;
    let object = found.object();
    let (word, owner) = owner_of(&state);
    let Usage {
        objects,
        object_bytes,
        map_objects,
        map_bytes,
        live_bytes,
        held_bytes,
        parents_bytes,
        slots,
        retired,
    } = usage;
    let count = |kind| {
        state
            .roots
            .pins
            .iter()
            .filter(|pin| pin.kind == kind)
            .count() as u64
    };
    Ok(Shown {
        url: place.url.clone(),
        uuid: found.id().to_string(),
        format_version: object.features.format_version(),
        compression: object.features.compression.map(|Compression::Zstd| "zstd"),
        encrypted: object.features.encrypted,
        flush: match object.features.flush_cache {
            true => "cache",
            false => "store",
        },
        unit_bytes: u64::from(object.features.unit_blocks) * steadfast_block::BLOCK_SIZE as u64,
        volume_bytes: state.blocks * steadfast_block::BLOCK_SIZE as u64,
        made_unix_seconds: object.made,
        parents: object.parents.iter().map(|p| p.url.clone()).collect(),
        state: word,
        host: owner.as_ref().map(|owner| owner.host.clone()),
        pid: owner.map(|owner| owner.pid),
        term: state.term.0,
        head_version: state.version,
        checkpoint_slot: state.checkpoint.0,
        slots_after_checkpoint: slots,
        snapshots: count(PinKind::Snapshot),
        clones: count(PinKind::Clone),
        live_bytes,
        held_bytes,
        parents_bytes,
        data_objects: objects,
        data_object_bytes: object_bytes,
        map_objects,
        map_object_bytes: map_bytes,
        retired_objects: retired,
    })
}

fn owner_of(state: &State) -> (&'static str, Option<steadfast_store::Owner>) {
    if state.released {
        return ("released", None);
    }
    let word = match state.owner.as_ref().map(steadfast_store::Owner::state) {
        Some(OwnerState::Runs) => "in-use",
        Some(OwnerState::Ended) => "not-released",
        Some(OwnerState::Elsewhere) | None => "elsewhere",
    };
    (word, state.owner.clone())
}

fn info(args: &InfoArgs) -> Result<ExitCode, Failure> {
    let shown = gather(&args.place)?;
    if args.place.json {
        text::print_json(&shown)?;
        return Ok(ExitCode::SUCCESS);
    }
    let owner = match (&shown.host, shown.pid) {
        (Some(host), Some(pid)) => format!(" (process {pid} on {host})"),
        _ => String::new(),
    };
    let mut lines = vec![
        format!("volume:     {}", shown.url),
        format!("uuid:       {}", shown.uuid),
        format!("size:       {}", size::show(shown.volume_bytes)),
        format!("state:      {}{owner}", shown.state),
        format!("term:       {}", shown.term),
        format!(
            "checkpoint: slot {}, {} slots after it",
            shown.checkpoint_slot, shown.slots_after_checkpoint
        ),
        format!(
            "in use:     {} of {} that the objects hold",
            size::show(shown.live_bytes),
            size::show(shown.held_bytes)
        ),
        format!(
            "objects:    {} with data ({}), {} with the map ({}), {} retired",
            shown.data_objects,
            size::show(shown.data_object_bytes),
            shown.map_objects,
            size::show(shown.map_object_bytes),
            shown.retired_objects
        ),
        format!("snapshots:  {}, clones: {}", shown.snapshots, shown.clones),
        format!("flush:      {}", shown.flush),
        format!(
            "units:      {}{}{}",
            size::show(shown.unit_bytes),
            shown.compression.map_or("", |_| ", compressed (zstd)"),
            if shown.encrypted {
                ", encrypted (AES-256-GCM)"
            } else {
                ""
            }
        ),
    ];
    if let Some(parent) = shown.parents.first() {
        lines.push(format!(
            "clone of:   {parent} ({} are read from there)",
            size::show(shown.parents_bytes)
        ));
    }
    text::print(&lines.join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn check(args: &CheckArgs) -> Result<ExitCode, Failure> {
    let could_not_run = |failure: Failure| failure.with_code(Code::CouldNotRun);
    let found = args.place.find().map_err(could_not_run)?;
    let meter = Meter::new(args.progress);
    let checked = found.check(&mut |done, total| meter.show("reading objects", done, total));
    drop(meter);
    let checked = checked.map_err(|e| could_not_run(store::failure(e)))?;
    let clean = checked.findings.is_empty();
    if args.place.json {
        let findings: Vec<serde_json::Value> = checked
            .findings
            .iter()
            .map(|finding| {
                serde_json::json!({
                    "object": finding.object,
                    "needed_by": finding.needed_by,
                    "what": finding.what,
                })
            })
            .collect();
        text::print_json(&serde_json::json!({
            "url": args.place.url,
            "result": if clean { "clean" } else { "damaged" },
            "objects": checked.objects,
            "bytes": checked.bytes,
            "findings": findings,
        }))?;
    } else {
        for finding in &checked.findings {
            text::print(&format!(
                "{} (needed by {})",
                finding.what, finding.needed_by
            ))?;
        }
        text::print(&format!(
            "{}: {} objects, {} read: {}",
            args.place.url,
            checked.objects,
            size::show(checked.bytes),
            match checked.findings.len() {
                0 => "clean".to_owned(),
                1 => "one finding".to_owned(),
                n => format!("{n} findings"),
            }
        ))?;
    }
    Ok(ExitCode::from(if clean { 0 } else { 4 }))
}

fn collect(args: &GcArgs) -> Result<ExitCode, Failure> {
    let device = args.place.open(false)?;
    let emptied = device.collect(u64::from(args.live));
    let emptied = emptied.map_err(|e| Failure::new(format!("{}: {e}", args.place.url)))?;
    let counters = device.counters();
    let released = device.release();
    released.map_err(|e| Failure::new(format!("{}: releasing it: {e}", args.place.url)))?;
    drop(device);
    let swept = match args.sweep {
        true => {
            let found = args.place.find()?;
            Some(found.sweep(args.delete).map_err(store::failure)?)
        }
        false => None,
    };
    if args.place.json {
        let swept = swept.map(|swept| {
            serde_json::json!({
                "listed": swept.listed,
                "garbage": swept.garbage,
                "garbage_bytes": swept.garbage_bytes,
                "deleted": swept.deleted,
                "foreign": swept.foreign,
            })
        });
        text::print_json(&serde_json::json!({
            "url": args.place.url,
            "emptied_objects": emptied,
            "moved_blocks": counters.moved_blocks,
            "deleted_objects": counters.deletes,
            "sweep": swept,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut lines = vec![format!(
        "{}: {emptied} objects emptied, {} moved, {} objects deleted",
        args.place.url,
        size::show(counters.moved_blocks * steadfast_block::BLOCK_SIZE as u64),
        counters.deletes
    )];
    if let Some(swept) = swept {
        lines.push(format!(
            "  of {} objects {} are named by nothing ({}); {}",
            swept.listed,
            swept.garbage,
            size::show(swept.garbage_bytes),
            match (swept.garbage, args.delete) {
                (0, _) => "nothing to delete".to_owned(),
                (_, true) => format!("{} deleted", swept.deleted),
                (_, false) => "--delete deletes them".to_owned(),
            }
        ));
    }
    text::print(&lines.join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn make_snapshot(args: &NamedArgs) -> Result<ExitCode, Failure> {
    let found = args.place.find()?;
    let state = found.state().map_err(store::failure)?;
    let pin = found.make_snapshot(&args.name).map_err(store::failure)?;
    if args.place.json {
        text::print_json(&serde_json::json!({
            "url": args.place.url,
            "name": pin.name,
            "slot": pin.base.through.0,
            "whole": state.released,
        }))?;
    } else {
        let whole = match state.released {
            true => "",
            false => {
                ": the volume was not released, so flushes after its last checkpoint are not in the snapshot"
            }
        };
        text::print(&format!(
            "{}@{}: snapshot of slot {} made{whole}",
            args.place.url, pin.name, pin.base.through.0
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn list(args: &InfoArgs) -> Result<ExitCode, Failure> {
    let roots = args.place.find()?.state().map_err(store::failure)?.roots;
    let word = |kind| match kind {
        PinKind::Snapshot => "snapshot",
        PinKind::Clone => "clone",
    };
    if args.place.json {
        let pins: Vec<serde_json::Value> = roots
            .pins
            .iter()
            .map(|pin| {
                serde_json::json!({
                    "kind": word(pin.kind),
                    "name": pin.name,
                    "made_unix_seconds": pin.made,
                    "slot": pin.base.through.0,
                })
            })
            .collect();
        text::print_json(&serde_json::json!({ "url": args.place.url, "snapshots": pins }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for pin in &roots.pins {
        text::print(&format!(
            "{}\t{}\tslot {}",
            word(pin.kind),
            pin.name,
            pin.base.through.0
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn clone(args: &CloneArgs) -> Result<ExitCode, Failure> {
    let from = store::url(std::path::Path::new(&args.snapshot));
    let Some(store::Url {
        url,
        snapshot: Some(name),
    }) = from
    else {
        return Err(Failure::usage(format!(
            "'{}' names no snapshot: write URL@SNAPSHOT ('steadfast store snapshot create' makes one)",
            args.snapshot
        )));
    };
    let endpoint = args.endpoint.as_deref();
    let to = store::location(args.to.trim_end_matches('/'), endpoint)?;
    let access = store::access(endpoint, args.key_file.as_deref())?;
    let key = match &args.new_key_file {
        Some(file) => Some(store::key_file(file)?),
        None => access.key.clone(),
    };
    let made = store::find(&url, &access)?
        .clone_to(&name, to, key.as_ref(), store::PATIENCE)
        .map_err(store::failure)?;
    text::print(&format!(
        "{}: clone of {url}@{name} made\n  uuid: {made}",
        args.to
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn salvage(args: &SalvageArgs) -> Result<ExitCode, Failure> {
    let wishes = store::StoreSettings {
        timeout: Some(store::PATIENCE),
        endpoint: args.place.endpoint.clone(),
        key_file: args.place.key_file.clone(),
        ..store::StoreSettings::default()
    };
    if !args.cache.exists() {
        return Err(Failure::at(&args.cache, "there is no such cache"));
    }
    let options = store::options(&wishes)?;
    let cache = store::cache_options(&args.cache, &wishes)?;
    let url = args.place.url.trim_end_matches('/');
    let to = store::location(
        args.to.trim_end_matches('/'),
        args.place.endpoint.as_deref(),
    )?;
    let key = match &args.new_key_file {
        Some(file) => Some(store::key_file(file)?),
        None => options.access.key.clone(),
    };
    let found = store::find(url, &options.access)?;
    let saved = found.salvage(&cache, &to, key.as_ref(), args.force, &options);
    let saved = saved.map_err(store::failure)?;
    if args.place.json {
        text::print_json(&serde_json::json!({
            "url": url,
            "clone": args.to,
            "uuid": saved.id.to_string(),
            "flushes": saved.flushes,
            "bytes": saved.bytes,
            "snapshot": saved.snapshot,
        }))?;
    } else {
        text::print(&format!(
            "{}: clone of {url}@{} made, with {} flushes ({}) of {}; the cache is empty now\n  uuid: {}",
            args.to,
            saved.snapshot,
            saved.flushes,
            size::show(saved.bytes),
            args.cache.display(),
            saved.id
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn rekey(args: &RekeyArgs) -> Result<ExitCode, Failure> {
    let file = store::key_file(&args.new_key_file)?;
    let found = args.place.find()?;
    found
        .rekey(&file, store::PATIENCE)
        .map_err(store::failure)?;
    if args.place.json {
        let url = &args.place.url;
        text::print_json(&serde_json::json!({ "url": url, "rekeyed": true }))?;
    } else {
        text::print(&format!(
            "{}: opens with {} from now on",
            args.place.url,
            args.new_key_file.display()
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn take_over(args: &TakeOverArgs) -> Result<ExitCode, Failure> {
    let device = args.place.open(true)?;
    let replayed = device.counters().replayed;
    let released = device.release();
    released.map_err(|e| Failure::new(format!("{}: releasing it: {e}", args.place.url)))?;
    drop(device);
    let term = args.place.find()?.state().map_err(store::failure)?.term.0;
    if args.place.json {
        text::print_json(&serde_json::json!({
            "url": args.place.url,
            "term": term,
            "replayed_slots": replayed,
        }))?;
    } else {
        text::print(&format!(
            "{}: taken over in term {term}, {replayed} slots replayed, and released: any machine may mount it",
            args.place.url
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
