//! Certificates of the cluster, created for each control plane.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};

/// A certificate and its key, in PEM.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

impl Pair {
    /// Writes `<name>.crt` and `<name>.key` into a directory.
    pub fn write(&self, directory: &Path, name: &str) -> Result<(PathBuf, PathBuf)> {
        let certificate = directory.join(format!("{name}.crt"));
        let key = directory.join(format!("{name}.key"));
        fs::write(&certificate, &self.certificate)?;
        fs::write(&key, &self.key)?;
        Ok((certificate, key))
    }
}

/// The certificate authority of one cluster.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    /// A new authority.
    pub fn new() -> Result<Self> {
        let mut params = params("berth-test-ca", &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        Ok(Self { issuer })
    }

    /// Certificate of the authority, in PEM.
    pub fn certificate(&self) -> String {
        self.issuer.pem()
    }

    /// Creates a client certificate for this user.
    ///
    /// It can carry only one group; for more, bind roles to the user.
    pub fn client(&self, user: &str, groups: &[&str]) -> Result<Pair> {
        if groups.len() > 1 {
            bail!("a client certificate carries at most one group, not {groups:?}");
        }
        self.sign(params(user, groups), ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// Creates a server certificate for these names and addresses.
    pub fn server(&self, names: &[&str], addresses: &BTreeSet<IpAddr>) -> Result<Pair> {
        let all: Vec<String> = names
            .iter()
            .map(|name| (*name).to_owned())
            .chain(addresses.iter().map(IpAddr::to_string))
            .collect();
        let mut params = params("kube-apiserver", &[]);
        params.subject_alt_names = CertificateParams::new(all)?.subject_alt_names;
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    fn sign(&self, mut params: CertificateParams, usage: ExtendedKeyUsagePurpose) -> Result<Pair> {
        params.extended_key_usages = vec![usage];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer).context("signing a certificate")?;
        Ok(Pair {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}

fn params(common_name: &str, groups: &[&str]) -> CertificateParams {
    let mut name = DistinguishedName::new();
    for group in groups {
        name.push(DnType::OrganizationName, *group);
    }
    name.push(DnType::CommonName, common_name);
    let mut params = CertificateParams::default();
    params.distinguished_name = name;
    params
}

/// Writes the key pair for service account tokens; returns the private and the public file.
pub fn write_token_keys(directory: &Path) -> Result<(PathBuf, PathBuf)> {
    let key = KeyPair::generate()?;
    let (private, public) = (directory.join("sa.key"), directory.join("sa.pub"));
    fs::write(&private, key.serialize_pem())?;
    fs::write(&public, key.public_key_pem())?;
    Ok((private, public))
}

/// Signs the text of a service account's token with the private key of [`write_token_keys`].
pub fn sign_token(directory: &Path, text: &[u8]) -> Result<Vec<u8>> {
    let key = KeyPair::from_pem(&fs::read_to_string(directory.join("sa.key"))?)?;
    let random = SystemRandom::new();
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &key.serialize_der(), &random);
    let key = key.map_err(|error| anyhow!("cannot use the key for tokens: {error}"))?;
    let signature = key.sign(&random, text).map_err(|_| anyhow!("cannot sign a token"))?;
    Ok(signature.as_ref().to_vec())
}

/// Credential in a kubeconfig.
#[derive(Debug, Clone)]
pub enum Credential {
    /// A client certificate.
    Certificate(Pair),
    /// A bearer token.
    Token(String),
    /// A file with a bearer token.
    TokenFile(std::path::PathBuf),
    /// A program that issues credentials: an `exec` entry.
    Program(serde_json::Value),
    /// Nothing: the API server sees an anonymous caller.
    Nothing,
}

/// Text of a kubeconfig with everything embedded. JSON is also YAML.
pub fn kubeconfig(server: &str, ca: &str, credential: &Credential) -> Result<String> {
    let user = match credential {
        Credential::Certificate(pair) => serde_json::json!({
            "client-certificate-data": STANDARD.encode(&pair.certificate),
            "client-key-data": STANDARD.encode(&pair.key),
        }),
        Credential::Token(token) => serde_json::json!({ "token": token }),
        Credential::TokenFile(path) => serde_json::json!({ "tokenFile": path }),
        Credential::Program(exec) => serde_json::json!({ "exec": exec }),
        Credential::Nothing => serde_json::json!({}),
    };
    let config = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority-data": STANDARD.encode(ca)}}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    });
    Ok(serde_json::to_string_pretty(&config)?)
}
