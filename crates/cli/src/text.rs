//! Writing results: a reader that goes away (`| head`) is no error.

use std::io::{ErrorKind, Write};

/// Text about the log of a volume that has none.
pub(crate) fn no_log(medium: &str) -> &'static str {
    match medium {
        "pm" => "none: in persistent memory each call is durable by the order of its stores",
        "store" => "none: on an object store, a commit is one PUT",
        _ => "none: on flash, a commit is one flush of the disk",
    }
}

use crate::failure::Failure;

/// Writes to standard output, with a line feed at the end.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out
        .write_all(text.as_bytes())
        .and_then(|()| out.write_all(b"\n"))
        .and_then(|()| out.flush())
    {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("standard output: {e}")))
        }
        _ => Ok(()),
    }
}

/// Version of all JSON output. It grows when a field goes away or changes its meaning, not when one is added;
/// `docs/reference/json.md` describes the fields.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// An output as JSON: an object, with the version first.
#[derive(serde::Serialize)]
struct Versioned<'a, T> {
    schema_version: u32,
    #[serde(flatten)]
    object: &'a T,
}

impl<'a, T: serde::Serialize> Versioned<'a, T> {
    fn new(object: &'a T) -> Versioned<'a, T> {
        Versioned {
            schema_version: SCHEMA_VERSION,
            object,
        }
    }
}

/// Writes an object as JSON.
pub(crate) fn print_json(object: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(&Versioned::new(object));
    print(&text.map_err(|e| Failure::new(e.to_string()))?)
}

/// Writes an object as one line of JSON.
pub(crate) fn print_json_line(object: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(&Versioned::new(object));
    print(&text.map_err(|e| Failure::new(e.to_string()))?)
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |n: u8| char::from_digit(u32::from(n), 16).unwrap_or('?');
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}

/// A volume's identity in the usual form.
pub(crate) fn uuid(bytes: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (i, byte) in bytes.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&hex(&[*byte]));
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_identity_has_the_usual_form() {
        let bytes = *b"\x01\x23\x45\x67\x89\xab\xcd\xef\x01\x23\x45\x67\x89\xab\xcd\xef";
        assert_eq!(super::uuid(&bytes), "01234567-89ab-cdef-0123-456789abcdef");
    }
}
