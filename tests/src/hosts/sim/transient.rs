//! Properties of a transient service, with systemd's checks.

use std::time::Duration;

use zbus::{OwnedVariant, Variant};

use crate::named_error::NamedError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Exec {
    /// Program and arguments, without `argv[0]`.
    pub(super) argv: Vec<String>,
    pub(super) ignore: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Transient {
    pub(super) description: String,
    pub(super) pre: Vec<Exec>,
    pub(super) start: Vec<Exec>,
    pub(super) post: Vec<Exec>,
    pub(super) stdout: Option<String>,
    pub(super) stderr: Option<String>,
    /// Paths, descriptor names and flags.
    pub(super) open_files: Vec<(String, String, String)>,
    /// Paths of environment files.
    pub(super) environment_files: Vec<String>,
    /// True if only the owner may access new output files.
    pub(super) private: bool,
    pub(super) add_ref: bool,
    pub(super) collect_failed: bool,
    pub(super) timeout: Option<Duration>,
    oneshot: bool,
}

/// Properties that are accepted but ignored here, with their signatures.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("After", "as"),
    ("CPUWeight", "t"),
    ("DefaultDependencies", "b"),
    ("Environment", "as"),
    ("IOSchedulingClass", "i"),
    ("IOSchedulingPriority", "i"),
    ("IOWeight", "t"),
    ("KillMode", "s"),
    ("LimitFSIZE", "t"),
    ("LogExtraFields", "aay"),
    ("MemoryHigh", "t"),
    ("Nice", "i"),
    ("PrivateMounts", "b"),
    ("SELinuxContext", "(bs)"),
    ("SendSIGKILL", "b"),
    ("Slice", "s"),
    ("StandardError", "s"),
    ("StandardOutput", "s"),
    ("SyslogIdentifier", "s"),
    ("TimeoutStopUSec", "t"),
];

impl Transient {
    pub(super) fn parse(properties: Vec<(String, OwnedVariant)>) -> Result<Self, NamedError> {
        let mut unit = Self::default();
        for (name, value) in properties {
            unit.set(&name, value)?;
        }
        if !unit.oneshot {
            let text = "the simulated host runs services of Type=oneshot only";
            return Err(NamedError::new("org.freedesktop.DBus.Error.NotSupported", text));
        }
        if unit.start.is_empty() {
            return Err(NamedError::systemd(
                "BadUnitSetting",
                "Service has no ExecStart=. Refusing.",
            ));
        }
        Ok(unit)
    }

    fn set(&mut self, name: &str, value: OwnedVariant) -> Result<(), NamedError> {
        match name {
            "Description" => self.description = get(name, "s", value)?,
            "Type" => self.oneshot = get::<String>(name, "s", value)? == "oneshot",
            "ExecStart" => self.start.extend(commands(name, value)?),
            "ExecStartPre" => self.pre.extend(commands(name, value)?),
            "ExecStartPost" => self.post.extend(commands(name, value)?),
            "StandardOutputFileToTruncate" => self.stdout = Some(path(name, value)?),
            "StandardErrorFileToTruncate" => self.stderr = Some(path(name, value)?),
            "OpenFile" => self
                .open_files
                .extend(get::<Vec<_>>(name, "a(sst)", value)?.into_iter().map(open_file)),
            "EnvironmentFiles" => {
                let files: Vec<(String, bool)> = get(name, "a(sb)", value)?;
                self.environment_files.extend(files.into_iter().map(|(path, _)| path));
            }
            "UMask" => self.private = get::<u32>(name, "u", value)? == 0o077,
            "AddRef" => self.add_ref = get(name, "b", value)?,
            "CollectMode" => self.collect_failed = collect_mode(get(name, "s", value)?)?,
            "TimeoutStartUSec" => {
                let micros: u64 = get(name, "t", value)?;
                // To systemd, both values mean "no limit".
                self.timeout = (micros != 0 && micros != u64::MAX).then(|| Duration::from_micros(micros));
            }
            _ => {
                let Some((_, signature)) = WITHOUT_EFFECT.iter().find(|(known, _)| *known == name) else {
                    let text = format!("Cannot set property {name}, or unknown property.");
                    return Err(NamedError::new("org.freedesktop.DBus.Error.PropertyReadOnly", text));
                };
                check(name, signature, &value)?;
            }
        }
        Ok(())
    }
}

fn check(name: &str, signature: &str, value: &OwnedVariant) -> Result<(), NamedError> {
    let has = value.value_signature().to_string();
    if has == signature {
        return Ok(());
    }
    Err(NamedError::invalid(format!(
        "property {name} has the type {has}, but must be {signature}"
    )))
}

fn get<T>(name: &str, signature: &str, value: OwnedVariant) -> Result<T, NamedError>
where
    T: TryFrom<Variant<'static>>,
{
    check(name, signature, &value)?;
    T::try_from(value.into()).map_err(|_| NamedError::invalid(format!("cannot read property {name}")))
}

fn path(name: &str, value: OwnedVariant) -> Result<String, NamedError> {
    let path: String = get(name, "s", value)?;
    if path.starts_with('/') {
        return Ok(path);
    }
    Err(NamedError::invalid(format!(
        "File {path} is not absolute or not normalized"
    )))
}

fn commands(name: &str, value: OwnedVariant) -> Result<Vec<Exec>, NamedError> {
    let commands: Vec<(String, Vec<String>, bool)> = get(name, "a(sasb)", value)?;
    let mut execs = vec![];
    for (program, mut argv, ignore) in commands {
        if !program.starts_with('/') {
            return Err(NamedError::invalid(format!("Path {program} is not absolute.")));
        }
        match argv.first_mut() {
            None => return Err(NamedError::invalid(format!("Invalid argument vector for {program}"))),
            Some(first) => *first = program,
        }
        execs.push(Exec { argv, ignore });
    }
    Ok(execs)
}

fn open_file((path, name, flags): (String, String, u64)) -> (String, String, String) {
    // The bits are systemd's: read-only, append, truncate, graceful.
    let names = ["read-only", "append", "truncate", "graceful"];
    let set = names.iter().enumerate().filter(|(bit, _)| flags & (1 << bit) != 0);
    (path, name, set.map(|(_, name)| *name).collect::<Vec<_>>().join(","))
}

fn collect_mode(mode: String) -> Result<bool, NamedError> {
    match mode.as_str() {
        "inactive" => Ok(false),
        "inactive-or-failed" => Ok(true),
        _ => Err(NamedError::invalid(format!("Invalid CollectMode setting: {mode}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(name: &str, value: Variant<'_>) -> (String, OwnedVariant) {
        (name.to_owned(), value.try_to_owned().unwrap())
    }

    fn command(program: &str, argument: &str) -> Variant<'static> {
        let argv = vec![program.to_owned(), argument.to_owned()];
        Variant::new(vec![(program.to_owned(), argv, false)])
    }

    #[test]
    fn reads_what_the_agent_sends() {
        let unit = Transient::parse(vec![
            owned("Type", Variant::new("oneshot")),
            owned("ExecStart", command("/usr/bin/bootc", "status")),
            owned("ExecStartPost", command("/usr/bin/ostree", "admin")),
            owned("TimeoutStartUSec", Variant::new(5_000_000u64)),
            owned("AddRef", Variant::new(true)),
            owned("StandardOutputFileToTruncate", Variant::new("/run/berth/out")),
            owned(
                "OpenFile",
                Variant::new(vec![("/run/berth/fifo".to_owned(), String::new(), 8u64)]),
            ),
            owned("IOWeight", Variant::new(10u64)),
            owned("Environment", Variant::new(vec!["A=b".to_owned()])),
        ])
        .unwrap();
        assert_eq!(unit.start[0].argv, ["/usr/bin/bootc", "status"]);
        assert_eq!(unit.post[0].argv[0], "/usr/bin/ostree");
        assert_eq!(unit.timeout, Some(Duration::from_secs(5)));
        assert_eq!(
            unit.open_files,
            [("/run/berth/fifo".to_owned(), String::new(), "graceful".to_owned())]
        );
        assert!(unit.add_ref && !unit.collect_failed);
    }

    #[test]
    fn refuses_unknown_properties_and_wrong_types() {
        for (name, value, words) in [
            ("Nonsense", Variant::new(1u32), "PropertyReadOnly"),
            ("IOWeight", Variant::new(10u32), "must be t"),
            ("AddRef", Variant::new("yes"), "must be b"),
            ("ExecStart", command("bootc", "status"), "not absolute"),
            ("Description", Variant::new("x"), "no ExecStart"),
        ] {
            let properties = vec![owned("Type", Variant::new("oneshot")), owned(name, value)];
            let refused = Transient::parse(properties).unwrap_err().to_string();
            assert!(refused.contains(words), "{name}: {refused}");
        }
    }

    #[test]
    fn no_timeout_has_two_forms() {
        for micros in [0, u64::MAX] {
            let unit = Transient::parse(vec![
                owned("Type", Variant::new("oneshot")),
                owned("ExecStart", command("/usr/bin/true", "")),
                owned("TimeoutStartUSec", Variant::new(micros)),
            ]);
            assert_eq!(unit.unwrap().timeout, None);
        }
    }
}
