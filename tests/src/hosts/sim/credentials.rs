//! The program `aws` of a simulated host, which issues tokens of the host's kubelet.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::controlplane::node_tokens;

/// Arguments of the program in the kubeconfig of a simulated host's kubelet.
pub const ARGUMENTS: [&str; 4] = ["eks", "get-token", "--cluster-name", "test"];
/// Variable that the kubeconfig sets for the program, and its value.
pub const VARIABLE: (&str, &str) = ("AWS_PROFILE", "a \"quoted\" $HOME \\ value");

/// Behavior of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialProgram {
    /// Lifetime of the tokens.
    pub lifetime: Duration,
    /// Error text of the program, which then issues no token.
    pub failure: Option<String>,
    /// Time that the program takes.
    pub time: Duration,
}

impl Default for CredentialProgram {
    fn default() -> Self {
        Self {
            lifetime: Duration::from_secs(14 * 60),
            failure: None,
            time: Duration::from_millis(50),
        }
    }
}

impl CredentialProgram {
    /// Runs `/usr/bin/env` with these arguments. Returns the standard output.
    ///
    /// # Errors
    /// Exit status and error text.
    pub(super) async fn run(
        &self,
        node: &str,
        arguments: &[&str],
        environment: &BTreeMap<String, String>,
    ) -> Result<String, (i32, String)> {
        let ["aws", arguments @ ..] = arguments else {
            let program = arguments.first().copied().unwrap_or_default();
            return Err((127, format!("/usr/bin/env: '{program}': No such file or directory")));
        };
        if arguments != ARGUMENTS {
            return Err((252, format!("aws: error: unexpected arguments {arguments:?}")));
        }
        let (name, value) = VARIABLE;
        let info: Value = environment
            .get("KUBERNETES_EXEC_INFO")
            .and_then(|info| serde_json::from_str(info).ok())
            .unwrap_or_default();
        let server = info["spec"]["cluster"]["server"].as_str().unwrap_or_default();
        if environment.get(name).is_none_or(|found| found != value) || !server.starts_with("https://") {
            return Err((253, format!("aws: error: unexpected environment {environment:?}")));
        }
        tokio::time::sleep(self.time).await;
        if let Some(failure) = &self.failure {
            return Err((255, failure.clone()));
        }
        let (token, expiry) = node_tokens::issue(node, self.lifetime);
        let answer = json!({
            "kind": "ExecCredential",
            "apiVersion": info["apiVersion"],
            "spec": {},
            "status": {"expirationTimestamp": expiry, "token": token},
        });
        Ok(answer.to_string())
    }
}

/// Reads an environment file as systemd does, if all values are in double quotes.
pub(super) fn environment(text: &str) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::new();
    let mut rest = text;
    while let Some((name, after)) = rest.split_once("=\"") {
        let (mut value, mut is_escaped, mut end) = (String::new(), false, after.len());
        for (index, c) in after.char_indices() {
            match c {
                '\\' if !is_escaped => is_escaped = true,
                '"' if !is_escaped => {
                    end = index + 1;
                    break;
                }
                c => {
                    is_escaped = false;
                    value.push(c);
                }
            }
        }
        variables.insert(name.trim().to_owned(), value);
        rest = after.get(end..).unwrap_or_default();
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_agent_writes() {
        let variables = [VARIABLE, ("B", "c\nD=e")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let text = berth_core::agent::exec_credential::command::environment_file(&variables);
        assert_eq!(environment(&text), BTreeMap::from(variables));
        assert!(environment("").is_empty());
    }
}
