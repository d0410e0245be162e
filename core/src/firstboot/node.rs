//! The signs that a machine is a node already. Pure.

use std::path::PathBuf;

/// Files and directories that an agent, a kubelet, or a distribution around one makes early in its life, and that stay.
pub const FILES: [&str; 8] = [
    "/var/lib/berth/state.json",
    "/var/lib/kubelet/pods",
    "/var/lib/kubelet/pki/kubelet-client-current.pem",
    "/var/lib/k0s/kubelet/pods",
    "/var/lib/k0s/kubelet/pki/kubelet-client-current.pem",
    "/var/lib/rancher/k3s/agent/kubelet.kubeconfig",
    "/var/lib/rancher/rke2/agent/kubelet.kubeconfig",
    "/var/snap/microk8s/common/var/lib/kubelet/pods",
];
/// Names of processes that are a kubelet, contain one, or start one.
const PROCESSES: [&str; 10] = [
    "kubelet",
    "hyperkube",
    "k0s",
    "k3s",
    "k3s-agent",
    "k3s-server",
    "kubelite",
    "microshift",
    "rke2",
    "rke2-agent",
];
/// Longest name of a process that the kernel keeps, in bytes.
const MAX_NAME: usize = 15;
/// Port of a kubelet's API, in the notation of `/proc/net/tcp`.
const KUBELET_PORT: &str = ":280A";
/// State of a socket that listens, in the same notation.
const LISTENS: &str = "0A";

/// Signs that the configuration names beside the known ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Signs {
    /// Files and directories.
    pub files: Vec<PathBuf>,
    /// Names of processes.
    pub processes: Vec<String>,
}

impl Signs {
    /// True if a process is a kubelet, contains one or starts one. `name` is its name as the kernel keeps it, `command_line`
    /// its arguments, each with a NUL behind it. The directory of its program does not matter.
    pub fn is_kubelet(&self, name: &str, command_line: &[u8]) -> bool {
        let program = command_line.split(|byte| *byte == 0).next().unwrap_or_default();
        let program = String::from_utf8_lossy(program);
        // A program that renames itself writes all of its arguments there.
        let program = program.split(' ').next().unwrap_or_default();
        let program = program.rsplit('/').next().unwrap_or_default();
        let known = PROCESSES.iter().copied();
        let named = self.processes.iter().map(String::as_str);
        known.chain(named).any(|sign| {
            let kept = sign.get(..MAX_NAME).unwrap_or(sign);
            name.trim_end() == kept || program == sign
        })
    }
}

/// True if the table of sockets in `/proc/net/tcp` or `/proc/net/tcp6` has one that listens on the port of a kubelet's API.
pub fn has_kubelet_port(table: &str) -> bool {
    table.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (local, _, state) = (fields.next(), fields.next(), fields.next());
        local.is_some_and(|local| local.ends_with(KUBELET_PORT)) && state == Some(LISTENS)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_is_known_by_its_name_wherever_its_program_lies() {
        let signs = Signs::default();
        for (name, command_line, expected) in [
            ("kubelet\n", "/usr/bin/kubelet\0--config=/etc/kubelet.yaml\0", true),
            (
                "kubelet",
                "/var/lib/k0s/bin/kubelet\0--root-dir=/var/lib/k0s/kubelet\0",
                true,
            ),
            ("kubelet", "", true),
            ("exe", "/opt/bin/kubelet\0", true),
            ("k3s-agent", "/usr/local/bin/k3s agent", true),
            ("k3s-server", "/usr/local/bin/k3s server\0", true),
            ("kubelite", "/snap/microk8s/1/kubelite\0--kubelet-args-file=x\0", true),
            ("hyperkube", "hyperkube\0kubelet\0", true),
            ("systemctl", "systemctl\0start\0kubelet\0", false),
            ("touch", "/usr/bin/touch\0/var/opt/kubelet-ran\0", false),
            ("kubelet-helper", "/usr/bin/kubelet-helper\0", false),
            ("berth-agent", "/usr/bin/berth-agent\0firstboot\0", false),
            ("kthreadd", "", false),
            ("", "", false),
        ] {
            assert_eq!(
                signs.is_kubelet(name, command_line.as_bytes()),
                expected,
                "{name} {command_line}"
            );
        }
        let signs = Signs {
            processes: vec!["our-own-node-supervisor".into()],
            ..Signs::default()
        };
        assert!(signs.is_kubelet("our-own-node-su", b""), "the kernel keeps 15 bytes");
        assert!(signs.is_kubelet("node", b"/opt/our-own-node-supervisor\0"));
        assert!(signs.is_kubelet("kubelet", b""), "the known names count as well");
        assert!(!signs.is_kubelet("our-own", b"/opt/our-own\0"));
    }

    #[test]
    fn a_kubelet_is_known_by_its_port_whatever_its_name() {
        const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue\n";
        let table = |local: &str, remote: &str, state: &str| {
            format!("{HEAD}   0: {local} {remote} {state} 00000000:00000000\n")
        };
        assert!(has_kubelet_port(&table("00000000:280A", "00000000:0000", "0A")));
        assert!(has_kubelet_port(&table(
            "00000000000000000000000000000000:280A",
            "0:0000",
            "0A"
        )));
        assert!(
            !has_kubelet_port(&table("00000000:280A", "0100007F:0050", "01")),
            "a connection"
        );
        assert!(
            !has_kubelet_port(&table("00000000:0050", "0100007F:280A", "0A")),
            "the other end"
        );
        assert!(!has_kubelet_port(&table("00000000:2808", "00000000:0000", "0A")));
        assert!(!has_kubelet_port(HEAD) && !has_kubelet_port(""));
    }
}
