//! `steadfast store cost`: objects and bytes by kind, their costs, and those of requests.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde::Serialize;

use super::Where;
use crate::failure::Failure;
use crate::volume::store;
use crate::{size, text};

/// Prices in dollars.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Prices {
    /// A GiB for a month.
    gib_month: f64,
    /// A thousand PUT, LIST or COPY requests.
    puts: f64,
    /// A thousand GET requests.
    gets: f64,
}

impl std::str::FromStr for Prices {
    type Err = String;

    fn from_str(text: &str) -> Result<Prices, String> {
        let mut prices = Prices {
            gib_month: 0.0,
            puts: 0.0,
            gets: 0.0,
        };
        for part in text.split(',') {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let value = value.parse().ok().filter(|value: &f64| *value >= 0.0);
            let value = value.ok_or_else(|| format!("'{part}': write NAME=DOLLARS"))?;
            match name {
                "gib-month" => prices.gib_month = value,
                "puts" => prices.puts = value,
                "gets" => prices.gets = value,
                _ => return Err(format!("'{name}' is none of gib-month, puts, gets")),
            }
        }
        Ok(prices)
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Prices in dollars: a GiB for a month, a thousand PUTs, a thousand GETs
    #[arg(
        long,
        value_name = "gib-month=D,puts=D,gets=D",
        default_value = "gib-month=0.023,puts=0.005,gets=0.0004"
    )]
    price: Prices,
    #[command(flatten)]
    place: Where,
}

/// Objects of a kind.
#[derive(Clone, Copy, Default, Serialize)]
struct Kind {
    objects: u64,
    bytes: u64,
}

/// Seconds of a month.
const MONTH: f64 = 30.0 * 86_400.0;
const GIB: f64 = (1_u64 << 30) as f64;

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let listed = args.place.find()?.list().map_err(store::failure)?;
    let mut kinds: BTreeMap<&str, Kind> = BTreeMap::new();
    for (name, bytes) in &listed {
        let kind = match name.split_once('/') {
            Some((kind @ ("log" | "data" | "map" | "roots" | "reader"), _)) => kind,
            None if name == "volume" || name == "head" => "head",
            _ => "other",
        };
        let sum = kinds.entry(kind).or_default();
        sum.objects += 1;
        sum.bytes += bytes;
    }
    let (objects, bytes) = kinds.values().fold((0, 0), |(objects, bytes), kind| {
        (objects + kind.objects, bytes + kind.bytes)
    });
    let price = args.price;
    let month = bytes as f64 / GIB * price.gib_month;
    // A flush is one PUT; bulk data are objects of 8 MiB.
    let flush_a_second = MONTH / 1000.0 * price.puts;
    let write_a_gib = 128.0 / 1000.0 * price.puts;
    let read_a_gib = 128.0 / 1000.0 * price.gets;
    if args.place.json {
        text::print_json(&serde_json::json!({
            "url": args.place.url,
            "kinds": kinds,
            "objects": objects,
            "bytes": bytes,
            "prices": price,
            "storage_dollars_month": month,
            "flush_a_second_dollars_month": flush_a_second,
            "write_a_gib_dollars": write_a_gib,
            "read_a_gib_dollars": read_a_gib,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut lines = vec![format!("{}:", args.place.url)];
    for (name, kind) in &kinds {
        lines.push(format!(
            "  {name:<7} {:>9} objects  {:>10}",
            kind.objects,
            size::show(kind.bytes)
        ));
    }
    lines.push(format!("  storage            {month:>10.2} $/month"));
    lines.push(format!(
        "  one flush a second {flush_a_second:>10.2} $/month"
    ));
    lines.push(format!("  writing a GiB      {write_a_gib:>10.5} $"));
    lines.push(format!("  reading a GiB      {read_a_gib:>10.5} $"));
    text::print(&lines.join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_read_by_name() {
        let read = |text: &str| text.parse::<Prices>();
        let expected = Prices {
            gib_month: 0.5,
            puts: 2.0,
            gets: 0.0,
        };
        assert_eq!(read("puts=2,gib-month=0.5"), Ok(expected));
        for wrong in ["", "puts", "puts=-1", "puts=x", "post=1"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
