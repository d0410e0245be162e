//! The command that issues a credential, from the `exec` entry of a kubeconfig.

use serde_json::{Map, Value, json};

/// Finds a program in the search path of the host's services, and executes it without a shell.
const ENV: &str = "/usr/bin/env";
/// Versions of the protocol between a client and the program.
const API_VERSIONS: [&str; 2] = [
    "client.authentication.k8s.io/v1",
    "client.authentication.k8s.io/v1beta1",
];
/// Variable with the protocol version and, if the entry asks for it, the cluster.
const EXEC_INFO: &str = "KUBERNETES_EXEC_INFO";
/// The kernel executes no program with a longer argument or variable, in bytes.
const MAX_WORD: usize = 128 << 10;

/// The `exec` entry of a kubeconfig's user.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Entry {
    /// Version of the protocol.
    pub api_version: Option<String>,
    /// Path or name of the program.
    pub command: Option<String>,
    /// Arguments of the program.
    pub args: Vec<String>,
    /// Additional environment of the program. The values may be secret.
    pub env: Vec<(String, String)>,
    /// True if the program needs a terminal.
    pub needs_terminal: bool,
    /// The cluster, if the entry has `provideClusterInfo`.
    pub cluster: Option<Value>,
}

/// A command of the host that issues a credential.
#[derive(Clone, PartialEq, Eq)]
pub struct Command {
    /// The program as the kubeconfig names it.
    pub program: String,
    /// Absolute path of the executed file, and its arguments.
    pub argv: Vec<String>,
    /// Additional environment. The values may be secret.
    pub environment: Vec<(String, String)>,
    /// Version of the protocol, which the answer must have.
    pub api_version: String,
}

/// Shows neither arguments nor environment, which may be secret.
impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Command")
            .field("program", &self.program)
            .finish_non_exhaustive()
    }
}

/// Reason why an `exec` entry cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// The entry has no command.
    #[error("the exec entry has no command")]
    NoCommand,
    /// The command is neither an absolute path nor a plain name.
    #[error("its command must be an absolute path, or a name that is found in the host's PATH")]
    RelativeCommand,
    /// The protocol version is unknown.
    #[error("its apiVersion must be {} or {}", API_VERSIONS[0], API_VERSIONS[1])]
    ApiVersion,
    /// The program needs a terminal.
    #[error("it needs a terminal (interactiveMode: Always), which the agent does not have")]
    NeedsTerminal,
    /// A name in the environment is not a valid name.
    #[error("entry {0} of its env has no valid name")]
    VariableName(usize),
    /// An argument or variable has a control character, or is longer than the kernel accepts.
    #[error("an argument or a variable has a control character, or more than {MAX_WORD} bytes")]
    Word,
}

impl Entry {
    /// Returns the command of this entry.
    ///
    /// # Errors
    /// When the entry is invalid, or its program needs a terminal.
    pub fn command(&self) -> Result<Command, EntryError> {
        let program = self.command.as_deref().unwrap_or_default();
        if program.is_empty() {
            return Err(EntryError::NoCommand);
        }
        let api_version = self.api_version.as_deref().unwrap_or_default();
        if !API_VERSIONS.contains(&api_version) {
            return Err(EntryError::ApiVersion);
        }
        if self.needs_terminal {
            return Err(EntryError::NeedsTerminal);
        }
        let mut argv = vec![];
        if !program.starts_with('/') {
            if !is_name(program) {
                return Err(EntryError::RelativeCommand);
            }
            argv.push(ENV.to_owned());
        }
        argv.push(program.to_owned());
        argv.extend(self.args.iter().cloned());
        let environment = self.environment(api_version)?;
        let values = environment.iter().map(|(_, value)| value);
        if !argv.iter().chain(values).all(|word| is_word(word)) {
            return Err(EntryError::Word);
        }
        Ok(Command {
            program: program.to_owned(),
            argv,
            environment,
            api_version: api_version.to_owned(),
        })
    }

    fn environment(&self, api_version: &str) -> Result<Vec<(String, String)>, EntryError> {
        let mut environment = self.env.clone();
        for (index, (name, _)) in environment.iter().enumerate() {
            if !is_variable(name) {
                return Err(EntryError::VariableName(index + 1));
            }
        }
        let mut spec = Map::from_iter([("interactive".to_owned(), json!(false))]);
        if let Some(cluster) = &self.cluster {
            spec.insert("cluster".to_owned(), cluster.clone());
        }
        let info = json!({"apiVersion": api_version, "kind": "ExecCredential", "spec": spec});
        environment.push((EXEC_INFO.to_owned(), info.to_string()));
        Ok(environment)
    }
}

/// Returns the text of an `EnvironmentFile` of systemd with these variables.
pub fn environment_file(environment: &[(String, String)]) -> String {
    let mut text = String::new();
    for (name, value) in environment {
        text.push_str(name);
        text.push_str("=\"");
        for c in value.chars() {
            if matches!(c, '"' | '\\' | '`' | '$') {
                text.push('\\');
            }
            text.push(c);
        }
        text.push_str("\"\n");
    }
    text
}

/// True for a program's name that `env` neither reads as an option nor as a variable.
fn is_name(program: &str) -> bool {
    !program.starts_with('-') && !program.contains(['/', '='])
}

fn is_variable(name: &str) -> bool {
    let mut bytes = name.bytes();
    let begins_well = bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    begins_well && name.len() <= MAX_WORD && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn is_word(word: &str) -> bool {
    word.len() < MAX_WORD && !word.chars().any(|c| c.is_control() && c != '\n' && c != '\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eks() -> Entry {
        let args = ["eks", "get-token", "--cluster-name", "a b; $(id)"];
        Entry {
            api_version: Some(API_VERSIONS[1].to_owned()),
            command: Some("aws".to_owned()),
            args: args.map(str::to_owned).to_vec(),
            ..Entry::default()
        }
    }

    #[test]
    fn a_program_is_found_in_the_path_and_gets_its_arguments_unchanged() {
        let command = eks().command().unwrap();
        assert_eq!(
            command.argv,
            [
                "/usr/bin/env",
                "aws",
                "eks",
                "get-token",
                "--cluster-name",
                "a b; $(id)"
            ]
        );
        let absolute = Entry {
            command: Some("/opt/aws-iam-authenticator".to_owned()),
            ..eks()
        };
        let command = absolute.command().unwrap();
        assert_eq!(command.argv[..2], ["/opt/aws-iam-authenticator", "eks"]);
        assert_eq!(command.program, "/opt/aws-iam-authenticator");
        assert_eq!(
            format!("{:?}", eks().command().unwrap()),
            "Command { program: \"aws\", .. }"
        );
    }

    #[test]
    fn the_program_receives_the_cluster_only_if_it_asks() {
        fn info(entry: &Entry) -> Value {
            let environment = entry.command().unwrap().environment;
            let (name, value) = environment.last().unwrap();
            assert_eq!(name, EXEC_INFO);
            serde_json::from_str(value).unwrap()
        }
        let plain = info(&eks());
        assert_eq!(
            plain,
            json!({"apiVersion": API_VERSIONS[1], "kind": "ExecCredential", "spec": {"interactive": false}})
        );
        let asking = Entry {
            cluster: Some(json!({"server": "https://a:6443"})),
            env: vec![("AWS_REGION".to_owned(), "eu".to_owned())],
            ..eks()
        };
        assert_eq!(info(&asking)["spec"]["cluster"]["server"], "https://a:6443");
        assert_eq!(asking.command().unwrap().environment[0].0, "AWS_REGION");
    }

    #[test]
    fn an_entry_that_cannot_work_is_refused() {
        fn with_command(command: &str) -> Entry {
            Entry {
                command: Some(command.to_owned()),
                ..eks()
            }
        }
        fn with_variable(name: &str, value: &str) -> Entry {
            Entry {
                env: vec![(name.to_owned(), value.to_owned())],
                ..eks()
            }
        }
        for (entry, error) in [
            (Entry { command: None, ..eks() }, EntryError::NoCommand),
            (with_command(""), EntryError::NoCommand),
            (with_command("./aws"), EntryError::RelativeCommand),
            (with_command("bin/aws"), EntryError::RelativeCommand),
            (with_command("-S"), EntryError::RelativeCommand),
            (with_command("A=b"), EntryError::RelativeCommand),
            (
                Entry {
                    api_version: None,
                    ..eks()
                },
                EntryError::ApiVersion,
            ),
            (
                Entry {
                    api_version: Some("client.authentication.k8s.io/v1alpha1".to_owned()),
                    ..eks()
                },
                EntryError::ApiVersion,
            ),
            (
                Entry {
                    needs_terminal: true,
                    ..eks()
                },
                EntryError::NeedsTerminal,
            ),
            (with_variable("", "x"), EntryError::VariableName(1)),
            (with_variable("A B", "x"), EntryError::VariableName(1)),
            (with_variable("A", "x\u{0}"), EntryError::Word),
            (with_variable("A", &"x".repeat(MAX_WORD)), EntryError::Word),
            (
                Entry {
                    args: vec!["\u{1b}[2J".to_owned()],
                    ..eks()
                },
                EntryError::Word,
            ),
        ] {
            assert_eq!(entry.command().unwrap_err(), error, "{entry:?}");
        }
    }

    #[test]
    fn an_environment_file_quotes_what_systemd_would_read() {
        let environment = [("A".to_owned(), "a \"b\" \\ $HOME `id`\nB=c".to_owned())];
        assert_eq!(
            environment_file(&environment),
            "A=\"a \\\"b\\\" \\\\ \\$HOME \\`id\\`\nB=c\"\n"
        );
    }
}
