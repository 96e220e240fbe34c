//! Clients of an export: networks, addresses, and host names, which are looked up when the exports are read.
//!
//! A name stands for its addresses at that moment. DNS then decides which clients may use the export, so use names
//! only in networks whose DNS is trusted as far as the export is. A name without an address is an error, not an empty
//! list.

use std::net::{IpAddr, ToSocketAddrs};

use steadfast_nfs::{IpNet, everybody};

/// The networks of all named clients.
pub(crate) fn networks(names: &[String]) -> Result<Vec<IpNet>, String> {
    let mut networks = Vec::new();
    for name in names {
        networks.extend(network(name)?);
    }
    Ok(networks)
}

fn network(text: &str) -> Result<Vec<IpNet>, String> {
    if text == "*" {
        return Ok(everybody());
    }
    if let Ok(host) = text.parse::<IpAddr>() {
        return Ok(vec![host.into()]);
    }
    if let Ok(net) = text.parse::<IpNet>() {
        let whole = net.trunc();
        if whole != net {
            return Err(format!(
                "client '{text}' is no network: write {whole} for the network, or {} for the host",
                net.addr()
            ));
        }
        return Ok(vec![net]);
    }
    if !is_host_name(text) {
        return Err(format!(
            "'{text}' is no client: write a network (10.0.0.0/8, fd00::/8), an address, the name of a host, or *"
        ));
    }
    let found = (text, 0).to_socket_addrs();
    let mut hosts: Vec<IpNet> = found
        .map_err(|e| {
            format!("client '{text}': the name cannot be looked up ({e}): write its address, or mend the name")
        })?
        .map(|at| at.ip().to_canonical().into())
        .collect();
    hosts.sort_unstable();
    hosts.dedup();
    if hosts.is_empty() {
        return Err(format!("client '{text}': the name has no address"));
    }
    Ok(hosts)
}

/// Labels of letters, digits and hyphens (RFC 1123), and not numbers alone.
fn is_host_name(text: &str) -> bool {
    let label = |label: &str| {
        let bytes = label.as_bytes();
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && bytes
                .iter()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let text = text.strip_suffix('.').unwrap_or(text);
    let last = text.rsplit('.').next().unwrap_or_default();
    text.len() <= 253 && text.split('.').all(label) && !last.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_client_is_a_network_an_address_or_a_name() {
        let one = |text: &str| network(text).unwrap();
        assert_eq!(one("10.0.0.0/8"), ["10.0.0.0/8".parse().unwrap()]);
        assert_eq!(one("10.0.0.7"), ["10.0.0.7/32".parse().unwrap()]);
        assert_eq!(one("fd00::1"), ["fd00::1/128".parse().unwrap()]);
        assert_eq!(one("*"), everybody());
        assert!(one("localhost").iter().all(|net| net.addr().is_loopback()));
        for (text, said) in [
            (
                "10.0.0.1/8",
                "write 10.0.0.0/8 for the network, or 10.0.0.1",
            ),
            ("fd00::1/8", "write fd00::/8 for the network, or fd00::1"),
            ("10.0.0.0/33", "is no client"),
            ("10.0.0.300", "is no client"),
            ("host/8", "is no client"),
            ("", "is no client"),
            ("a b", "is no client"),
            ("-x", "is no client"),
            ("no-such-host.invalid", "cannot be looked up"),
        ] {
            let refused = network(text).unwrap_err();
            assert!(refused.contains(said), "{text}: {refused}");
        }
    }
}
