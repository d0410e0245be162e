//! The network that a test's hosts share with the machine: one bridge.

use std::net::Ipv4Addr;

use anyhow::{Result, bail};

use super::shell::tool;

/// A bridge with the first address of a `/24` that nobody else uses. Deleted when dropped.
#[derive(Debug)]
pub struct Bridge {
    octets: (u8, u8),
}

impl Bridge {
    /// Makes one. Its name comes from its network, so making it is what reserves the network among test processes.
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
        bail!("no free network for a bridge in 10.100.0.0 to 10.199.255.0 (is this machine allowed to make bridges?)")
    }

    /// Says whether nothing but a default route leads there.
    fn is_free(&self) -> bool {
        let to = self.gateway().to_string();
        let routes = tool("ip", &["-o", "-4", "route", "show", "match", &to]);
        routes.is_ok_and(|text| text.lines().all(|line| line.starts_with("default")))
    }

    /// The interface's name, unique on this machine.
    pub(super) fn name(&self) -> String {
        format!("bt{}-{}", self.octets.0, self.octets.1)
    }

    /// The machine's own address on it.
    pub fn gateway(&self) -> Ipv4Addr {
        self.address(1)
    }

    /// Another address on it.
    pub(super) fn address(&self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.octets.0, self.octets.1, host)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        delete(&self.name());
    }
}

/// Lets at most so many bytes a second through to the host behind an interface; `None` lifts the limit. It goes with the interface,
/// which is another one after each boot.
pub(super) fn limit(interface: &str, rate: Option<u64>) -> Result<()> {
    let Some(rate) = rate else {
        // An error says that there was no limit.
        let _ = tool("tc", &["qdisc", "del", "dev", interface, "root"]);
        return Ok(());
    };
    let rate = format!("{}bit", rate.saturating_mul(8));
    // A short queue, so that what the host has to say to the API server meanwhile is not late.
    let options = ["tbf", "rate", &rate, "burst", "16kb", "latency", "100ms"];
    let command = [&["qdisc", "replace", "dev", interface, "root"], &options[..]].concat();
    tool("tc", &command).map(drop)
}

/// Deletes a bridge, if it is there.
pub(super) fn delete(name: &str) {
    // An error says that it is gone.
    let _ = tool("ip", &["link", "delete", name]);
}
