//! Sizes as people write and read them.

use std::fmt::Write;

/// Powers of 1024, from kibi on.
const UNITS: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];

/// Reads a size in bytes: `4096`, `512M`, `1G`, `1.5GiB` (powers of 1024), `1GB` (of 1000).
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "'{text}' is no size: write a number of bytes, or one with a unit such as 512M, 1G or 1.5TiB"
        )
    };
    let text_only = text.trim();
    let digits = text_only
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text_only.len());
    let (number, unit) = text_only.split_at(digits);
    let unit = unit.trim();
    let factor: u64 = match unit.chars().next().map(|c| c.to_ascii_uppercase()) {
        None => 1,
        Some('B') if unit.len() == 1 => 1,
        Some(letter) => {
            let power = UNITS.iter().position(|&u| u == letter).ok_or_else(wrong)? as u32 + 1;
            match &unit[1..] {
                "" | "i" | "iB" | "ib" => 1024u64.pow(power),
                "B" | "b" => 1000u64.pow(power),
                _ => return Err(wrong()),
            }
        }
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || (number.contains('.') && fraction.is_empty()) || fraction.len() > 9 {
        return Err(wrong());
    }
    let too_large = || format!("'{text}' is too large: sizes go up to 16 EiB");
    let mut bytes = whole
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(factor))
        .ok_or_else(|| {
            if whole.bytes().all(|b| b.is_ascii_digit()) {
                too_large()
            } else {
                wrong()
            }
        })?;
    if !fraction.is_empty() {
        let part: u128 = fraction.parse().map_err(|_| wrong())?;
        let part = part * u128::from(factor) / 10u128.pow(fraction.len() as u32);
        let part = u64::try_from(part).map_err(|_| too_large())?;
        bytes = bytes.checked_add(part).ok_or_else(too_large)?;
    }
    Ok(bytes)
}

/// A size for people: `1 GiB`, `1.5 MiB`, `512 B`.
pub(crate) fn show(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = None;
    for u in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = Some(u);
    }
    let mut text = String::new();
    let _ = match unit {
        None => write!(text, "{bytes} B"),
        Some(u) if (value * 10.0).round() % 10.0 == 0.0 || value >= 100.0 => {
            write!(text, "{value:.0} {u}iB")
        }
        Some(u) => write!(text, "{value:.1} {u}iB"),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("512M", 512 << 20),
            ("512m", 512 << 20),
            ("1G", 1 << 30),
            ("1GiB", 1 << 30),
            ("1 GiB", 1 << 30),
            ("1GB", 1_000_000_000),
            ("1.5K", 1536),
            ("0.5T", 1 << 39),
            ("15E", 15 << 60),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_a_hint() {
        for text in [
            "",
            "G",
            "-1",
            "1X",
            "1GG",
            "1.",
            ".5G",
            "1.2.3",
            "0x10",
            "1 G 2",
            "1\u{e9}",
            "16E",
            "99999999999999999999",
        ] {
            let error = parse(text);
            assert!(
                error.as_ref().is_err_and(|e| e.contains("size")),
                "{text}: {error:?}"
            );
        }
    }

    #[test]
    fn sizes_are_shown_with_units() {
        assert_eq!(show(512), "512 B");
        assert_eq!(show(1 << 30), "1 GiB");
        assert_eq!(show(3 << 19), "1.5 MiB");
        assert_eq!(show((60 << 20) - 12288), "60 MiB");
        assert_eq!(show(u64::MAX), "16 EiB");
    }
}
