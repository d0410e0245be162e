//! Decides whether the agent may write its own registry credentials into the host's auth file. bootc and rpm-ostree
//! read only the first existing path of [`PLACES`]. So the agent's file, at the first path, hides the files at the
//! other paths. The agent neither overwrites nor hides a file that it did not write, unless it runs with
//! `--replace-auth-file`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_api::digest::Digest;
use serde_json::{Map, Value};

use super::objection::Objection;
use crate::agent::facts::{ClusterNode, Desired};
use crate::agent::reason::Reason;

/// Paths on the host where an auth file may be. bootc and rpm-ostree read only the first one that exists. The agent
/// writes only the first path.
pub const PLACES: [&str; 3] = [
    "/run/ostree/auth.json",
    "/etc/ostree/auth.json",
    "/usr/lib/ostree/auth.json",
];
/// Longest auth file that is accepted, in bytes: the size limit of a Secret.
pub const MAX_LENGTH: usize = 1 << 20;

/// Registry credentials that an admin gave the agent, in a Secret, for the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Given {
    /// The agent was given no credentials, or they were taken away again.
    Nothing,
    /// An auth file; has the digest of its content.
    File(Digest),
    /// The credentials are not usable, for this reason.
    Unusable(String),
}

/// State of one path of the auth file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Place {
    /// The path has no file.
    #[default]
    Empty,
    /// The path has a regular file; has the digest of its content.
    File(Digest),
    /// The path has something else, such as a symbolic link; has a description of it.
    Odd(String),
}

impl Place {
    fn is_file(&self, content: &Digest) -> bool {
        matches!(self, Self::File(digest) if digest == content)
    }

    /// True if the path has anything but a regular file with this content.
    fn is_foreign(&self, content: &Digest) -> bool {
        *self != Self::Empty && !self.is_file(content)
    }
}

/// The host's auth files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuthFiles {
    /// State of each of [`PLACES`].
    pub places: [Place; 3],
    /// Digests of the auth files that the agent wrote, as recorded on the host.
    pub ours: Vec<Digest>,
}

/// Whether the agent may put credentials on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The agent may: the node is a member of a pool and not excluded.
    Member,
    /// The agent must remove its file: the node is in no pool, excluded or gone.
    Released,
    /// Not known yet: the agent changes nothing.
    Unknown,
}

impl Claim {
    /// Returns the claim that follows from the BootcNode's spec and the Node (I12).
    pub fn of(desired: &Desired, node: &ClusterNode) -> Self {
        match (desired, node) {
            (Desired::Release, _) => Self::Released,
            (Desired::Unknown, _) | (Desired::Member(_), ClusterNode::Unread) => Self::Unknown,
            (Desired::Member(member), ClusterNode::Is(node)) if node.uid == member.node_uid && !node.excluded => {
                Self::Member
            }
            (Desired::Member(_), ClusterNode::Is(_) | ClusterNode::Gone) => Self::Released,
        }
    }
}

/// Change to the auth file at the first of [`PLACES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Change nothing.
    Keep,
    /// Write the given credentials.
    Write,
    /// Remove the file that Berth wrote.
    Remove,
}

/// Returns how to change the auth file, and the problem to report, if there is one. `replace` is true under
/// `--replace-auth-file`.
pub fn decide(claim: Claim, given: &Given, host: &AuthFiles, replace: bool) -> (Change, Option<Objection>) {
    let [first, below @ ..] = &host.places;
    let is_ours = matches!(first, Place::File(digest) if host.ours.contains(digest));
    let remove = if is_ours { Change::Remove } else { Change::Keep };
    let wanted = match (claim, given) {
        (Claim::Unknown, _) => return (Change::Keep, None),
        (Claim::Released, _) | (Claim::Member, Given::Nothing) => return (remove, None),
        (Claim::Member, Given::Unusable(why)) => {
            let message = format!("{why}; the host's auth file is not changed");
            return (Change::Keep, Some(Objection::new(Reason::InvalidAuthFile, message)));
        }
        (Claim::Member, Given::File(wanted)) => wanted,
    };
    if !is_ours && first.is_file(wanted) {
        // Another program wrote a file with these very credentials. The file may change later, so the agent does not
        // treat it as its own.
        return (Change::Keep, None);
    }
    let foreign = if !is_ours && first.is_foreign(wanted) {
        Some(0)
    } else {
        let foreign_below = below.iter().position(|place| place.is_foreign(wanted));
        foreign_below.map(|at| at + 1)
    };
    match foreign.filter(|_| !replace) {
        Some(at) => (remove, Some(foreign_file(host, at))),
        None if first.is_file(wanted) => (Change::Keep, None),
        None => (Change::Write, None),
    }
}

fn foreign_file(host: &AuthFiles, at: usize) -> Objection {
    let path = PLACES.get(at).copied().unwrap_or_default();
    let what = match host.places.get(at) {
        Some(Place::Odd(what)) => format!("{path} ({what})"),
        _ => path.to_owned(),
    };
    let message = format!(
        "the host has {what}, which Berth did not write: the host pulls with that file, and the agent's credentials are not \
         used; remove the file, or start the agent with --replace-auth-file"
    );
    Objection::new(Reason::ForeignAuthFile, message)
}

/// Returns a clause that names the auth file which the host's last pull used.
pub fn in_use(host: &AuthFiles) -> String {
    let used = host.places.iter().position(|place| *place != Place::Empty);
    match used {
        Some(0) if matches!(&host.places[0], Place::File(d) if host.ours.contains(d)) => {
            format!("the host pulled with {}, which Berth wrote", PLACES[0])
        }
        Some(at) => {
            let path = PLACES.get(at).copied().unwrap_or_default();
            format!("the host pulled with {path}, which Berth did not write")
        }
        None => format!(
            "the host pulled without credentials: it has none of {}",
            PLACES.join(", ")
        ),
    }
}

/// Checks that the text is an auth file whose credentials skopeo can use. The error quotes no secret.
pub fn check(text: &[u8]) -> Result<(), String> {
    const FORM: &str = r#"the file is not JSON of the form {"auths": {"REGISTRY": {"auth": "…"}}}"#;
    if text.len() > MAX_LENGTH {
        return Err(format!("the file has more than {MAX_LENGTH} bytes"));
    }
    // The message leaves out the parser's error, which may quote a secret.
    let file: Map<String, Value> = serde_json::from_slice(text)
        .map_err(|error| format!("{FORM}: line {}, column {}", error.line(), error.column()))?;
    let helpers = match file.get("credHelpers") {
        None | Some(Value::Null) => false,
        Some(Value::Object(helpers)) => !helpers.is_empty(),
        Some(_) => return Err(FORM.to_owned()),
    };
    let store = match file.get("credsStore") {
        None | Some(Value::Null) => false,
        Some(Value::String(store)) => !store.is_empty(),
        Some(_) => return Err(FORM.to_owned()),
    };
    if helpers || store {
        let advice = "store the credentials themselves, as `kubectl create secret docker-registry` does";
        return Err(format!(
            "the file names credential helpers (credHelpers, credsStore), which Berth does not install on the host; {advice}"
        ));
    }
    let auths = match file.get("auths") {
        Some(Value::Object(auths)) => auths,
        None | Some(Value::Null) => return Err("the file has no credentials under auths".to_owned()),
        Some(_) => return Err(FORM.to_owned()),
    };
    if auths.is_empty() {
        return Err("the file has no credentials under auths".to_owned());
    }
    for (key, entry) in auths {
        check_entry(entry).map_err(|why| format!("auths[{key:?}] {why}"))?;
    }
    Ok(())
}

fn check_entry(entry: &Value) -> Result<(), &'static str> {
    let (auth, token) = (secret(entry, "auth")?, secret(entry, "identitytoken")?);
    if auth.is_empty() {
        // An entry with only `username` and `password` is not usable: skopeo reads neither.
        return if token.is_empty() {
            Err("has no auth, which must be the base64 of USER:PASSWORD")
        } else {
            Ok(())
        };
    }
    match STANDARD.decode(auth) {
        Ok(plain) if plain.contains(&b':') => Ok(()),
        _ => Err("has an invalid auth: it must be the base64 of USER:PASSWORD"),
    }
}

/// Returns the value of `auth` or `identitytoken` in an entry; an empty text if the entry does not have it. Fails if
/// the value is not a string.
fn secret<'a>(entry: &'a Value, field: &str) -> Result<&'a str, &'static str> {
    match entry.get(field) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err("has an auth or identitytoken that is not a string"),
    }
}

#[cfg(test)]
mod tests;
