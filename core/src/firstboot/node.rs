//! Signs that a machine is already a node of a cluster. Pure.

use std::path::PathBuf;

/// Files and directories that exist only on a node: an agent, a kubelet or a Kubernetes distribution creates them at
/// its first start, and nothing removes them.
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
/// Names of kubelet processes, and of processes that contain a kubelet or start one.
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
/// Longest process name that the kernel stores, in bytes. The kernel cuts off longer names.
const MAX_NAME: usize = 15;
/// Port of the kubelet API, 10250, as `/proc/net/tcp` shows it at the end of a socket's local address.
const KUBELET_PORT: &str = ":280A";
/// State of a listening socket in `/proc/net/tcp`.
const LISTENS: &str = "0A";

/// Files and processes from the configuration. Each shows that the machine is already a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Signs {
    /// Paths that exist only on a node.
    pub files: Vec<PathBuf>,
    /// Names of processes that run only on a node.
    pub processes: Vec<String>,
}

impl Signs {
    /// True if a process is a kubelet, contains one or starts one. `name` is the process name that the kernel stores,
    /// `command_line` the arguments, each ending in NUL. Of the program's path, only the last part counts.
    pub fn is_kubelet(&self, name: &str, command_line: &[u8]) -> bool {
        let program = command_line.split(|byte| *byte == 0).next().unwrap_or_default();
        let program = String::from_utf8_lossy(program);
        // Some programs change their process title, and then the first argument has the whole command line.
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

/// True if a socket listens on the port of the kubelet API. `table` is the text of `/proc/net/tcp` or `/proc/net/tcp6`.
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
    fn a_kubelet_is_recognized_by_its_program_name() {
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
    fn a_kubelet_is_recognized_by_its_port() {
        const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue\n";
        for (line, expected) in [
            ("00000000:280A 00000000:0000 0A", true),
            ("00000000000000000000000000000000:280A 0:0000 0A", true),
            // The server's end of a connection to the kubelet API.
            ("00000000:280A 0100007F:0050 01", false),
            // Sockets with another local port.
            ("00000000:0050 0100007F:280A 0A", false),
            ("00000000:2808 00000000:0000 0A", false),
        ] {
            let table = format!("{HEAD}   0: {line} 00000000:00000000\n");
            assert_eq!(has_kubelet_port(&table), expected, "{line}");
        }
        assert!(!has_kubelet_port(HEAD) && !has_kubelet_port(""));
    }
}
