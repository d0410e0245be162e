//! The network of a test's hosts and the machine: a bridge.

use std::net::Ipv4Addr;

use anyhow::{Result, bail};

use super::shell::tool;

/// A bridge with the first address of an unused `/24`. Deleted when dropped.
#[derive(Debug)]
pub struct Bridge {
    octets: (u8, u8),
}

impl Bridge {
    /// Creates a bridge. Its name is derived from its network, so the bridge also reserves the network among test
    /// processes.
    pub(super) fn new() -> Result<Self> {
        let begin = std::process::id();
        for step in 0..2000 {
            let number = begin.wrapping_mul(7919).wrapping_add(step * 13) % (100 * 256);
            let octets = (100 + u8::try_from(number / 256)?, u8::try_from(number % 256)?);
            let bridge = Self { octets };
            if !bridge.is_free() {
                std::mem::forget(bridge);
                continue;
            }
            let name = bridge.name();
            if tool("ip", &["link", "add", &name, "type", "bridge"]).is_err() {
                std::mem::forget(bridge);
                continue;
            }
            let address = format!("{}/24", bridge.gateway());
            tool("ip", &["addr", "add", &address, "dev", &name])?;
            tool("ip", &["link", "set", &name, "up"])?;
            return Ok(bridge);
        }
        bail!("no free network for a bridge in 10.100.0.0 to 10.199.255.0 (may this process create bridges?)")
    }

    /// True if no route but the default route matches the network.
    fn is_free(&self) -> bool {
        let to = self.gateway().to_string();
        let routes = tool("ip", &["-o", "-4", "route", "show", "match", &to]);
        routes.is_ok_and(|text| text.lines().all(|line| line.starts_with("default")))
    }

    pub(super) fn name(&self) -> String {
        format!("bt{}-{}", self.octets.0, self.octets.1)
    }

    /// The machine's own address on the bridge.
    pub fn gateway(&self) -> Ipv4Addr {
        self.address(1)
    }

    /// Gives the machine another address, which hosts reach by their default route.
    pub(super) fn add_address(&self, address: Ipv4Addr) -> Result<()> {
        tool("ip", &["addr", "add", &format!("{address}/32"), "dev", &self.name()]).map(drop)
    }

    /// Routes packets for this network to a host on the bridge.
    pub(super) fn add_route(&self, network: &str, host: Ipv4Addr) -> Result<()> {
        tool("ip", &["route", "add", network, "via", &host.to_string()]).map(drop)
    }

    /// Address on the bridge whose last number is `host`.
    pub(super) fn address(&self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.octets.0, self.octets.1, host)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        delete(&self.name());
    }
}

/// Limits the traffic to the host behind an interface, in bytes per second; `None` removes the limit. Each boot creates
/// a new interface without a limit.
pub(super) fn limit(interface: &str, rate: Option<u64>) -> Result<()> {
    let Some(rate) = rate else {
        // An error means that there was no limit.
        let _ = tool("tc", &["qdisc", "del", "dev", interface, "root"]);
        return Ok(());
    };
    let rate = format!("{}bit", rate.saturating_mul(8));
    // A short queue, so that the host's requests to the API server are not delayed.
    let options = ["tbf", "rate", &rate, "burst", "16kb", "latency", "100ms"];
    let command = [&["qdisc", "replace", "dev", interface, "root"], &options[..]].concat();
    tool("tc", &command).map(drop)
}

pub(super) fn delete(name: &str) {
    // An error means that it does not exist.
    let _ = tool("ip", &["link", "delete", name]);
}
