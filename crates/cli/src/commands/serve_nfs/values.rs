//! Values of options, as the command line and the file write them.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use steadfast_nfs::Security;

/// The port of NFS.
const PORT: u16 = 2049;
/// Maximum number of typing errors in a word for which another is suggested.
const TYPING_ERRORS_MAX: usize = 3;

/// Address to listen on, with or without a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct ListenAt(pub(crate) SocketAddr);

impl FromStr for ListenAt {
    type Err = String;

    fn from_str(text: &str) -> Result<ListenAt, String> {
        let bare = text.trim_start_matches('[').trim_end_matches(']');
        let with_port = text.parse::<SocketAddr>();
        let without = || bare.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, PORT));
        let at = with_port.or_else(|_| without());
        at.map(ListenAt).map_err(|_| {
            format!(
                "'{text}' is no address of this host: write 0.0.0.0, 10.0.0.1:2049 or [::1]:2049"
            )
        })
    }
}

impl TryFrom<String> for ListenAt {
    type Error = String;

    fn try_from(text: String) -> Result<ListenAt, String> {
        text.parse()
    }
}

/// Memory for cached blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct CacheBytes(pub(crate) u64);

impl FromStr for CacheBytes {
    type Err = String;

    fn from_str(text: &str) -> Result<CacheBytes, String> {
        match crate::size::parse(text) {
            Ok(bytes) if bytes >= 1 << 20 => Ok(CacheBytes(bytes)),
            Ok(_) => Err("1M is the least".to_owned()),
            Err(e) => Err(e.to_string()),
        }
    }
}

impl TryFrom<String> for CacheBytes {
    type Error = String;

    fn try_from(text: String) -> Result<CacheBytes, String> {
        text.parse()
    }
}

/// A time such as 5s or 500ms; a number alone is seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Time(pub(crate) Duration);

/// The shortest and the longest lease: a request to the store needs some time, and clients must not wait longer.
const TIMES: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(500)..=Duration::from_secs(300);

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Time, String> {
        let wrong = || format!("'{text}' is no time from 500ms to 300s: write 5s or 1500ms");
        let (number, unit) = match text.strip_suffix("ms") {
            Some(number) => (number, 1),
            None => (text.strip_suffix('s').unwrap_or(text), 1000),
        };
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let time = Duration::from_millis(number.checked_mul(unit).ok_or_else(wrong)?);
        match TIMES.contains(&time) {
            true => Ok(Time(time)),
            false => Err(wrong()),
        }
    }
}

impl TryFrom<String> for Time {
    type Error = String;

    fn try_from(text: String) -> Result<Time, String> {
        text.parse()
    }
}

/// The weakest protection that is allowed; None if no connection is.
pub(crate) fn least_of(allowed: Option<&[Security]>) -> Option<Security> {
    match allowed {
        None => Some(Security::None),
        Some(names) => names.iter().copied().min(),
    }
}

/// The known word nearest to the unknown one, from a message of serde:
/// ``unknown field `x`, expected one of `a`, `b` ``.
pub(crate) fn nearest(message: &str) -> Option<&str> {
    let mut words = message.split('`').skip(1).step_by(2);
    let unknown = words.next().filter(|_| message.starts_with("unknown "))?;
    let distance = |word: &str| strsim::damerau_levenshtein(word, unknown);
    words
        .min_by_key(|word| distance(word))
        .filter(|word| distance(word) <= TYPING_ERRORS_MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_address_without_a_port_means_port_2049() {
        for (text, at) in [
            ("0.0.0.0", "0.0.0.0:2049"),
            ("10.0.0.1:7", "10.0.0.1:7"),
            ("::1", "[::1]:2049"),
            ("[::1]", "[::1]:2049"),
            ("[::1]:7", "[::1]:7"),
        ] {
            let parsed: ListenAt = text.parse().unwrap();
            assert_eq!(parsed.0, at.parse().unwrap(), "{text}");
        }
        for text in ["", "here", "10.0.0.1:", "10.0.0.1:x", ":2049"] {
            assert!(text.parse::<ListenAt>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_nearest_known_word_is_offered_if_it_is_near() {
        let message = "unknown field `read_only`, expected one of `image`, `read-only`, `path`";
        assert_eq!(nearest(message), Some("read-only"));
        let message = "unknown variant `rot`, expected one of `none`, `root`, `all`";
        assert_eq!(nearest(message), Some("root"));
        assert_eq!(
            nearest("unknown field `frobnicate`, expected `image`"),
            None
        );
        assert_eq!(nearest("invalid type: `image`, expected `image`"), None);
    }
}
