//! `steadfast ftl`: disks in emulated flash memory, and their translation layer.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use steadfast_flash::{Geometry, ImageError, ImageStore};
use steadfast_ftl::bench::{self, Kind, Load};
use steadfast_ftl::stress::{self, Report};
use steadfast_ftl::{
    BaselineKind, Disk, DiskError, Faults, FtlError, Intervals, Options, TooSmall, WhenFull,
    geometry_for, random_volume,
};

use crate::failure::Failure;
use crate::progress::Meter;
use crate::{size, text};

/// Bytes of a sector of the disks that are made here.
const SECTOR: u64 = 4096;
/// Operations of one history of the stress test.
const HISTORY: u64 = 20_000;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Make an image file with an empty disk, which a crash returns to its last flush
    #[command(visible_alias = "mkfs")]
    Format(FormatArgs),
    /// Show what an image file holds: the flash memory, the disk, and the wear
    Info(InfoArgs),
    /// Test the layer: random histories with power cuts and failures, in memory
    Stress(StressArgs),
    /// Measure random writes in virtual time, against layers that promise less
    Bench(BenchArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct FormatArgs {
    /// Size of the disk
    #[arg(long, value_parser = size::parse)]
    size: u64,
    /// Maximum size of an epoch, the writes from one flush to the next
    #[arg(long, default_value = "8M", value_parser = size::parse)]
    epoch: u64,
    /// Size of the delta region: map changes that flash gathers from one checkpoint to the next, at least eight
    /// pages. A smaller region makes a mount after a crash faster, and writes more. Usually half the size of the map
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    delta_region: Option<u64>,
    /// Spare flash, in percent of the disk's size; more of it means that less data is moved
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u64).range(0..=1000))]
    spare: u64,
    /// Channels of the memory
    #[arg(long, default_value_t = 4)]
    channels: u32,
    /// Dies on each channel
    #[arg(long, default_value_t = 2)]
    dies: u32,
    /// Pages of a block
    #[arg(long, default_value_t = 64)]
    pages: u32,
    /// Bytes of a page, a multiple of 4K
    #[arg(long, default_value = "8K", value_parser = size::parse)]
    page_size: u64,
    /// Replace an existing flash image
    #[arg(long)]
    force: bool,
    /// The image file
    image: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct InfoArgs {
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    /// The image file
    image: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct StressArgs {
    /// Seed of the first histories; the same seed repeats a run
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Minimum number of operations, over all configurations
    #[arg(long, default_value_t = 1_000_000)]
    operations: u64,
    /// Show progress even if standard error is not a terminal
    #[arg(long)]
    progress: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// Number of writes from one flush to the next; several, separated by commas, are measured in turn
    #[arg(long, value_delimiter = ',', default_value = "1,16,256,2048",
          value_parser = clap::value_parser!(u64).range(1..=2048))]
    interval: Vec<u64>,
    /// Size of the flash memory, which has the geometry of the paper: 4 channels of 4 dies, pages of 8 KiB
    #[arg(long, default_value = "1G", value_parser = size::parse)]
    size: u64,
    /// Writes to measure at each interval
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    writes: u64,
    /// Seed of the random addresses
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Show progress even if standard error is not a terminal
    #[arg(long)]
    progress: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Format(args) => format(args),
        Command::Info(args) => info(args),
        Command::Stress(args) => run_stress(args),
        Command::Bench(args) => run_bench(args),
    }
}

impl FormatArgs {
    /// A disk of this size and these epochs, in memory as usual.
    pub(crate) fn usual(size: u64, epoch: u64, force: bool, image: PathBuf) -> FormatArgs {
        FormatArgs {
            size,
            epoch,
            delta_region: None,
            spare: 25,
            channels: 4,
            dies: 2,
            pages: 64,
            page_size: 8192,
            force,
            image,
        }
    }
}

/// Makes an image file with an empty disk in it.
pub(crate) fn create(args: &FormatArgs) -> Result<(Disk<ImageStore>, Geometry), Failure> {
    let image = &args.image;
    if args.page_size == 0 || !args.page_size.is_multiple_of(SECTOR) || args.page_size > 16 * SECTOR
    {
        return Err(Failure::usage("--page-size: a multiple of 4K, at most 64K"));
    }
    let (sectors, epoch) = (args.size / SECTOR, args.epoch / SECTOR);
    if sectors == 0 || epoch == 0 {
        return Err(Failure::usage("--size and --epoch: at least 4K are needed"));
    }
    let per_page = (args.page_size / SECTOR) as u32;
    let like = Geometry {
        channels: args.channels,
        dies: args.dies,
        blocks: 1,
        pages: args.pages,
        sectors: per_page,
        sector_bytes: SECTOR as u32,
        spare_bytes: 64 + 8 * per_page,
    };
    like.check().map_err(|e| Failure::usage(e.to_string()))?;
    let intervals = Intervals {
        epoch,
        region: args.delta_region.map(|size| size.div_ceil(args.page_size)),
    };
    let geometry = geometry_for(like, sectors, intervals, args.spare).map_err(|e| {
        Failure::usage(match e {
            TooSmall::Region { least, .. } => format!(
                "--delta-region: at least {} are needed: {least} pages of {}",
                size::show(least * args.page_size),
                size::show(args.page_size)
            ),
            e => too_small(&e),
        })
    })?;
    match std::fs::symlink_metadata(image) {
        Ok(_) if !args.force => {
            return Err(Failure::at(
                image,
                "is there already; use --force to replace a flash image",
            ));
        }
        Ok(_) => {
            // Only a flash image that is not in use is removed, whatever its content.
            match Disk::open_read_only(image) {
                Ok(_) | Err(DiskError::Layer(_)) => {}
                Err(e) => return Err(failure(image, e)),
            }
            std::fs::remove_file(image).map_err(|e| Failure::at(image, e))?;
        }
        Err(_) => {}
    }
    let options = Options {
        sectors,
        epoch,
        region: intervals.region,
        volume: random_volume(),
    };
    let disk = Disk::create(image, geometry, options, WhenFull::default())
        .map_err(|e| failure(image, e))?;
    Ok((disk, geometry))
}

fn format(args: &FormatArgs) -> Result<ExitCode, Failure> {
    let (_, geometry) = create(args)?;
    text::print(&format!(
        "{}: disk of {} made in {} of flash, at most {} from one flush to the next\n  \
         contract: snapshot: a crash returns the disk to its last flush",
        args.image.display(),
        size::show(args.size / SECTOR * SECTOR),
        size::show(geometry.capacity()),
        size::show(args.epoch / SECTOR * SECTOR),
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// What `info` shows.
#[derive(Serialize)]
struct Shown {
    image: PathBuf,
    contract: &'static str,
    disk_bytes: u64,
    epoch_bytes: u64,
    delta_region_bytes: u64,
    map_bytes: u64,
    flash_bytes: u64,
    channels: u32,
    dies_per_channel: u32,
    blocks: u32,
    pages_per_block: u32,
    page_bytes: usize,
    sector_bytes: u32,
    memory_bytes: u64,
    mapped_bytes: u64,
    bad_blocks: u32,
    bad_blocks_bearable: u64,
    erases_least: u32,
    erases_mean: f64,
    erases_most: u32,
}

fn info(args: &InfoArgs) -> Result<ExitCode, Failure> {
    let image = &args.image;
    // Opened as by a mount, but in memory alone: the file is not changed.
    let disk = Disk::open_read_only(image).map_err(|e| failure(image, e))?;
    let shown = disk.look(|layer| {
        let mapped: u64 = {
            let blocks = layer.blocks();
            (0..blocks.count()).map(|block| blocks.valid(block)).sum()
        };
        let (limits, shape) = (*layer.limits(), *layer.shape());
        let nand = layer.platform().nand();
        let g = *nand.geometry();
        let erases = || (0..g.all_blocks()).map(|block| nand.erases_of(block));
        let total: u64 = erases().map(u64::from).sum();
        Shown {
            image: image.clone(),
            contract: "snapshot",
            disk_bytes: limits.sectors * u64::from(g.sector_bytes),
            epoch_bytes: limits.epoch * u64::from(g.sector_bytes),
            delta_region_bytes: limits.delta_pages * g.page_bytes() as u64,
            map_bytes: limits.map_pages * g.page_bytes() as u64,
            flash_bytes: g.capacity(),
            channels: g.channels,
            dies_per_channel: g.dies,
            blocks: g.all_blocks(),
            pages_per_block: g.pages,
            page_bytes: g.page_bytes(),
            sector_bytes: g.sector_bytes,
            memory_bytes: limits.memory_bytes(&shape),
            mapped_bytes: mapped * u64::from(g.sector_bytes),
            bad_blocks: (0..g.all_blocks()).filter(|&b| nand.is_bad(b)).count() as u32,
            bad_blocks_bearable: limits.bad_blocks,
            erases_least: erases().min().unwrap_or(0),
            erases_mean: total as f64 / f64::from(g.all_blocks()),
            erases_most: erases().max().unwrap_or(0),
        }
    });
    let Some(shown) = shown else {
        return Err(Failure::at(
            image,
            "the disk is gone; run the command again",
        ));
    };
    if args.json {
        text::print_json(&shown)?;
    } else {
        text::print(&lines(&shown))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn lines(shown: &Shown) -> String {
    [
        format!("image:    {}", shown.image.display()),
        format!(
            "contract: {} (a crash returns the disk to its last flush)",
            shown.contract
        ),
        format!("disk:     {}", size::show(shown.disk_bytes)),
        format!("mapped:   {}", size::show(shown.mapped_bytes)),
        format!(
            "epoch:    at most {} from one flush to the next",
            size::show(shown.epoch_bytes)
        ),
        format!(
            "deltas:   {} from one checkpoint to the next, for a map of {}",
            size::show(shown.delta_region_bytes),
            size::show(shown.map_bytes)
        ),
        format!(
            "flash:    {}: {} channels of {} dies, {} blocks of {} pages of {}",
            size::show(shown.flash_bytes),
            shown.channels,
            shown.dies_per_channel,
            shown.blocks,
            shown.pages_per_block,
            size::show(shown.page_bytes as u64),
        ),
        format!(
            "wear:     {} to {} erases of a block, {:.1} on average; {} bad blocks of {} bearable",
            shown.erases_least,
            shown.erases_most,
            shown.erases_mean,
            shown.bad_blocks,
            shown.bad_blocks_bearable,
        ),
        format!(
            "memory:   {} for tables while it is open",
            size::show(shown.memory_bytes)
        ),
    ]
    .join("\n")
}

/// What `stress` found.
#[derive(Serialize)]
struct Stressed {
    seed: u64,
    operations: u64,
    writes: u64,
    trims: u64,
    flushes: u64,
    crashes: u64,
    crashes_in_recovery: u64,
    crashes_in_flushes_that_took_place: u64,
    sectors_compared: u64,
    failed_blocks: u64,
    checkpoints: u64,
    seconds: f64,
    violation: Option<String>,
}

fn run_stress(args: &StressArgs) -> Result<ExitCode, Failure> {
    let begun = std::time::Instant::now();
    let meter = Meter::new(args.progress);
    let plans = stress::plans();
    let rounds = args
        .operations
        .div_ceil(HISTORY * plans.len() as u64)
        .max(1);
    let total = rounds * plans.len() as u64 * HISTORY;
    let (mut report, mut done, mut broken) = (Report::default(), 0, None);
    'rounds: for round in 0..rounds {
        for plan in &plans {
            let seed = args.seed.wrapping_add(round);
            match stress::run(plan, seed, HISTORY, Faults::default()) {
                Ok(part) => report += part,
                Err(violation) => {
                    broken = Some((seed, violation.to_string()));
                    break 'rounds;
                }
            }
            done += HISTORY;
            meter.show("operations", done, total);
        }
    }
    drop(meter);
    let stressed = Stressed {
        seed: args.seed,
        operations: done,
        writes: report.writes,
        trims: report.trims,
        flushes: report.flushes,
        crashes: report.crashes,
        crashes_in_recovery: report.recovery_crashes,
        crashes_in_flushes_that_took_place: report.flushed_crashes,
        sectors_compared: report.compared,
        failed_blocks: report.failed_blocks,
        checkpoints: report.checkpoints,
        seconds: begun.elapsed().as_secs_f64(),
        violation: broken.as_ref().map(|(_, what)| what.clone()),
    };
    if args.json {
        text::print_json(&stressed)?;
    } else {
        text::print(&format!(
            "{} operations in {:.1} s, {} flushes, {} crashes ({} in recovery), {} sectors compared: {}\n  \
             {} writes, {} trims, {} checkpoints, {} blocks failed (seed {})",
            stressed.operations,
            stressed.seconds,
            stressed.flushes,
            stressed.crashes,
            stressed.crashes_in_recovery,
            stressed.sectors_compared,
            stressed.violation.as_deref().unwrap_or("no violation"),
            stressed.writes,
            stressed.trims,
            stressed.checkpoints,
            stressed.failed_blocks,
            stressed.seed,
        ))?;
    }
    match broken {
        None => Ok(ExitCode::SUCCESS),
        Some((seed, what)) => Err(Failure::new(format!(
            "the contract was broken: {what}; 'steadfast ftl stress --seed {seed} --operations 1' repeats it"
        ))),
    }
}

/// One line of `bench`.
#[derive(Serialize)]
struct Row {
    interval: u64,
    layer: &'static str,
    megabytes_per_second: f64,
    /// Ratio to the layer without snapshots.
    ratio_to_async: f64,
    flush_mean_ms: f64,
    flush_worst_ms: f64,
    /// Bytes programmed for each byte written.
    write_amplification: f64,
}

fn run_bench(args: &BenchArgs) -> Result<ExitCode, Failure> {
    const EPOCH: u64 = 2048;
    let paper = Geometry::paper();
    let one = Geometry { blocks: 1, ..paper }.capacity();
    let blocks = u32::try_from(args.size / one).unwrap_or(u32::MAX);
    let geometry = Geometry { blocks, ..paper };
    geometry
        .check()
        .map_err(|e| Failure::usage(format!("--size: {e}")))?;
    let most = bench::largest(&geometry, EPOCH)
        .map_err(|e| Failure::usage(format!("--size: {}", too_small(&e))))?;
    // Filled as in the paper: a disk of 4 GiB in 6 GiB.
    let sectors = most.min(geometry.capacity() / SECTOR * 2 / 3);
    let layers = [
        ("async", Kind::Baseline(BaselineKind::Asynchronous)),
        ("ftl", Kind::Snapshot),
        ("sync", Kind::Baseline(BaselineKind::Synchronous)),
    ];
    let meter = Meter::new(args.progress);
    let mut rows: Vec<Row> = Vec::new();
    for &interval in &args.interval {
        let load = Load {
            geometry,
            sectors,
            live: sectors,
            hot: false,
            aging: sectors / 2,
            epoch: EPOCH,
            interval,
            writes: args.writes,
        };
        let mut reference = None;
        for (layer, kind) in layers {
            let step = format!("{layer}, flush after {interval}");
            let measured = bench::measure(kind, &load, args.seed, &mut |done, total| {
                meter.show(&step, done, total);
            })
            .map_err(|e| Failure::new(format!("bench: {layer}: {e}")))?;
            let bytes = args.writes * SECTOR;
            let rate = bytes as f64 / 1e6 / (measured.nanoseconds.max(1) as f64 / 1e9);
            let programmed = measured.programs * geometry.page_bytes() as u64;
            let ms = |ns: u64| ns as f64 / 1e6;
            rows.push(Row {
                interval,
                layer,
                megabytes_per_second: rate,
                ratio_to_async: rate / *reference.get_or_insert(rate),
                flush_mean_ms: ms(measured.flush_nanoseconds) / measured.flushes.max(1) as f64,
                flush_worst_ms: ms(measured.flush_worst_nanoseconds),
                write_amplification: programmed as f64 / bytes as f64,
            });
        }
    }
    drop(meter);
    if args.json {
        text::print_json(&serde_json::json!({ "rows": rows }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut lines = vec![
        format!(
            "random writes of 4 KiB to a disk of {} in {} of flash, in virtual time",
            size::show(sectors * SECTOR),
            size::show(geometry.capacity())
        ),
        "flush after  layer      MB/s  to async  flush mean  flush worst  amplification".to_owned(),
    ];
    lines.extend(rows.iter().map(|row| {
        format!(
            "{:>11}  {:<5} {:>9.2} {:>9.2} {:>8.2} ms {:>9.2} ms {:>14.2}",
            row.interval,
            row.layer,
            row.megabytes_per_second,
            row.ratio_to_async,
            row.flush_mean_ms,
            row.flush_worst_ms,
            row.write_amplification,
        )
    }));
    text::print(&lines.join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn too_small(error: &TooSmall) -> String {
    match error {
        TooSmall::Disk { region, .. } => {
            let region = region.map_or("", |_| ", a smaller delta region");
            format!("{error}; or allow a smaller epoch{region}, or more pages in all")
        }
        TooSmall::Region { .. } | TooSmall::Geometry { .. } => error.to_string(),
    }
}

/// The error of an image, with advice.
pub(crate) fn failure(image: &Path, error: DiskError) -> Failure {
    let advice = match &error {
        DiskError::Image(ImageError::Io { source, .. })
            if source.kind() == std::io::ErrorKind::NotFound =>
        {
            return Failure::at(
                image,
                "does not exist; check the name, or make it with 'steadfast ftl format --size SIZE IMAGE'",
            );
        }
        DiskError::InUse { .. } => return crate::volume::in_use(image),
        DiskError::Layer(FtlError::Corrupt { what: "root", .. }) => {
            "; without that root the newest flush cannot be found. Nothing was changed, and the data pages are still there: keep \
             a copy of the image, and do not format it"
        }
        DiskError::Layer(FtlError::NotFormatted) => {
            "; 'steadfast ftl format --force' makes one, and destroys the content"
        }
        DiskError::Layer(FtlError::Corrupt { .. }) => {
            "; nothing was changed: keep a copy of the image before anything else is done with it"
        }
        _ => "",
    };
    let text = format!("{error}{advice}");
    if text.contains(&*image.to_string_lossy()) {
        Failure::new(text)
    } else {
        Failure::at(image, text)
    }
}
