//! The files and command lines of a control plane's servers.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::kubeconfig::Kubeconfig;
use super::options::Options;
use super::pki::{Authority, Credential, kubeconfig, write_token_keys};
use crate::process::Process;

/// First address of the service network, where every pod expects the API server, on port 443.
pub const SERVICE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);

const AUDIT_POLICY: &str = include_str!("../../../manifests/audit-policy.yaml");

/// The shipped policy, extended with pods and bindings, the fleet's status, and the metadata of all other requests. The
/// shipped policy omits pod bodies, which may contain secrets, and has rules only for requests that Berth's judge
/// needs.
fn audit_policy() -> Result<String> {
    let mut policy: Value = serde_saphyr::from_str(AUDIT_POLICY).context("manifests/audit-policy.yaml")?;
    let pods = json!({
        "level": "RequestResponse",
        "verbs": ["create"],
        "resources": [{ "group": "", "resources": ["pods", "pods/binding"] }],
    });
    let rules = policy.get_mut("rules").and_then(Value::as_array_mut);
    let rules = rules.context("manifests/audit-policy.yaml has no rules")?;
    let fleet = json!({
        "level": "RequestResponse",
        "verbs": ["update", "patch"],
        "resources": [{ "group": "berth.dev", "resources": ["bootcfleets/status"] }],
    });
    rules.splice(0..0, [pods, fleet]);
    rules.push(json!({ "level": "Metadata" }));
    Ok(policy.to_string())
}

#[derive(Debug)]
pub(super) struct Layout {
    directory: PathBuf,
    pub(super) options: Options,
    ports: [u16; 3],
}

impl Layout {
    /// Writes keys, certificates and the audit policy. `ports`: the API server's and etcd's two.
    pub(super) fn write(directory: &Path, options: Options, authority: &Authority, ports: [u16; 3]) -> Result<Self> {
        let mut addresses = BTreeSet::from([IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(SERVICE_ADDRESS)]);
        addresses.extend(options.advertise);
        let names = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ];
        authority.server(&names, &addresses)?.write(directory, "apiserver")?;
        authority
            .client("kube-apiserver-kubelet-client", &["system:masters"])?
            .write(directory, "kubelet-client")?;
        fs::write(directory.join("ca.crt"), authority.certificate())?;
        fs::write(directory.join("audit.yaml"), audit_policy()?)?;
        write_token_keys(directory)?;
        Ok(Self {
            directory: directory.to_owned(),
            options,
            ports,
        })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn audit_log(&self) -> PathBuf {
        self.directory.join("audit.log")
    }

    pub(super) fn etcd_port(&self) -> u16 {
        let [_, etcd, _] = self.ports;
        etcd
    }

    pub(super) fn url(&self, address: IpAddr) -> String {
        let [port, ..] = self.ports;
        format!("https://{}", std::net::SocketAddr::from((address, port)))
    }

    /// Returns `--<flag>=<file in our directory>`.
    fn file(&self, flag: &str, name: &str) -> String {
        format!("--{flag}={}", self.directory.join(name).display())
    }

    fn run(&self, name: &str, program: &Path, arguments: &[String]) -> Result<Process> {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.directory);
        let log = self.directory.join(format!("{name}.log"));
        Process::start(name, &command, &log)
    }

    /// Starts etcd. Its data need not outlive the test, so nothing is synced to disk.
    pub(super) fn etcd(&self, program: &Path) -> Result<Process> {
        let [_, client, peer] = self.ports;
        let peer = format!("http://127.0.0.1:{peer}");
        let arguments = [
            self.file("data-dir", "etcd"),
            format!("--listen-client-urls={}", etcd_url(client)),
            format!("--advertise-client-urls={}", etcd_url(client)),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            "--unsafe-no-fsync".to_owned(),
            "--quota-backend-bytes=8000000000".to_owned(),
            "--log-level=warn".to_owned(),
        ];
        self.run("etcd", program, &arguments)
    }

    pub(super) fn apiserver(&self, program: &Path) -> Result<Process> {
        let [port, ..] = self.ports;
        self.apiserver_on(program, "kube-apiserver", port, "audit.log")
    }

    /// Starts another API server of the same cluster, on another port.
    pub(super) fn another_apiserver(&self, program: &Path, port: u16) -> Result<Process> {
        self.apiserver_on(
            program,
            &format!("kube-apiserver-{port}"),
            port,
            &format!("audit-{port}.log"),
        )
    }

    fn apiserver_on(&self, program: &Path, name: &str, port: u16, audit_log: &str) -> Result<Process> {
        let mut arguments = vec![
            format!("--etcd-servers={}", etcd_url(self.etcd_port())),
            format!("--secure-port={port}"),
            self.file("tls-cert-file", "apiserver.crt"),
            self.file("tls-private-key-file", "apiserver.key"),
            self.file("client-ca-file", "ca.crt"),
            self.file("kubelet-client-certificate", "kubelet-client.crt"),
            self.file("kubelet-client-key", "kubelet-client.key"),
            "--kubelet-preferred-address-types=InternalIP,Hostname".to_owned(),
            self.file("service-account-key-file", "sa.pub"),
            self.file("service-account-signing-key-file", "sa.key"),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--allow-privileged=true".to_owned(),
            self.file("audit-policy-file", "audit.yaml"),
            self.file("audit-log-path", audit_log),
            // A single file: the judge must not miss rotated records.
            "--audit-log-maxsize=100000".to_owned(),
            "--max-requests-inflight=2000".to_owned(),
            "--max-mutating-requests-inflight=1000".to_owned(),
        ];
        match self.options.advertise {
            Some(address) => arguments.extend([
                "--bind-address=0.0.0.0".to_owned(),
                format!("--advertise-address={address}"),
            ]),
            // The endpoints of the service must not be a loopback address.
            None => arguments.extend([
                "--bind-address=127.0.0.1".to_owned(),
                "--advertise-address=127.0.0.1".to_owned(),
                "--endpoint-reconciler-type=none".to_owned(),
            ]),
        }
        arguments.extend(self.options.apiserver_arguments.iter().cloned());
        self.run(name, program, &arguments)
    }

    pub(super) fn controller_manager(&self, program: &Path, authority: &Authority) -> Result<Process> {
        let mut controllers = vec!["*".to_owned()];
        let disabled = self.options.disabled_controllers.iter();
        controllers.extend(disabled.map(|name| format!("-{name}")));
        let name = "kube-controller-manager";
        let mut arguments = vec![
            self.kubeconfig(name, authority)?,
            "--use-service-account-credentials".to_owned(),
            self.file("service-account-private-key-file", "sa.key"),
            self.file("root-ca-file", "ca.crt"),
            "--allocate-node-cidrs=false".to_owned(),
            format!("--controllers={}", controllers.join(",")),
        ];
        arguments.extend(single_instance_flags());
        arguments.extend(self.options.controller_manager_arguments.iter().cloned());
        self.run(name, program, &arguments)
    }

    pub(super) fn scheduler(&self, program: &Path, authority: &Authority) -> Result<Process> {
        let name = "kube-scheduler";
        let mut arguments = vec![self.kubeconfig(name, authority)?];
        arguments.extend(single_instance_flags());
        self.run(name, program, &arguments)
    }

    fn kubeconfig(&self, name: &str, authority: &Authority) -> Result<String> {
        let pair = authority.client(&format!("system:{name}"), &[])?;
        let text = kubeconfig(
            &self.url(Ipv4Addr::LOCALHOST.into()),
            &authority.certificate(),
            &Credential::Certificate(pair),
        )?;
        let file = Kubeconfig::write(&self.directory, name, text)?;
        Ok(format!("--kubeconfig={}", file.path.display()))
    }
}

/// Flags of a component without replicas and without clients.
fn single_instance_flags() -> [String; 4] {
    [
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
    ]
    .map(str::to_owned)
}

pub(super) fn etcd_url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}
