//! Shell completion: a script for each shell, and the candidates for the next word of a command line.
//!
//! The scripts run `kubectl-berth __complete -- WORD...`. Its output has kubectl's format for plugins: one candidate
//! per line, each with a tab and a description, then a line with the number of a directive. Commands and flags come
//! from the clap definition of the command line, names of pools and nodes from the cluster.

use clap::{Arg, ArgAction, Command, ValueEnum, ValueHint};

/// Cobra's completion directive, printed on the last line: the shell may also complete file names.
const FILES: u8 = 0;
/// Cobra's directive: the shell offers only the candidates, without file names.
const NO_FILES: u8 = 4;
/// Cobra's directive: the shell adds no space after the candidate.
const NO_SPACE: u8 = 2;

/// Program that a completion script is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// For kubectl-berth in bash.
    Bash,
    /// For kubectl-berth in zsh.
    Zsh,
    /// For kubectl-berth in fish.
    Fish,
    /// For kubectl berth in any shell with kubectl's own completion. Put the script on the PATH as
    /// kubectl_complete-berth.
    Kubectl,
}

/// Candidates that come from the cluster or from the pool's schema. All other candidates come from clap's definition of
/// the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// Names of pools.
    Pools,
    /// Names of Nodes.
    Nodes,
    /// Fields of a pool's spec.
    Fields,
}

/// Returns the completion script for a shell.
pub const fn script(shell: Shell) -> &'static str {
    match shell {
        Shell::Bash => include_str!("completion/bash.sh"),
        Shell::Zsh => include_str!("completion/zsh.sh"),
        Shell::Fish => include_str!("completion/fish.fish"),
        Shell::Kubectl => include_str!("completion/kubectl.sh"),
    }
}

/// Returns the candidates for the last word, and the directive, as text. Calls `names` only if the last word may be a
/// name.
pub fn complete(mut command: Command, words: &[String], names: impl FnOnce(Names) -> Vec<String>) -> String {
    command.build();
    let (last, before) = words
        .split_last()
        .map_or(("", &[] as &[String]), |(last, before)| (last.as_str(), before));
    let place = Place::of(&command, before);
    let (mut found, directive) = match place.value {
        Some(option) => values(option, names),
        None if last.starts_with('-') => (flags(place.command), NO_FILES),
        None if place.command.has_subcommands() => (commands(place.command), NO_FILES),
        None => match place.positional() {
            Some(argument) => values(argument, names),
            None => (flags(place.command), NO_FILES),
        },
    };
    found.retain(|(value, _)| value.starts_with(last));
    found.into_iter().map(line).collect::<String>() + &format!(":{directive}\n")
}

fn line((value, help): Candidate) -> String {
    if help.is_empty() {
        format!("{value}\n")
    } else {
        format!("{value}\t{help}\n")
    }
}

/// Returns the value of an option in an unfinished command line: `--context NAME` or `--context=NAME`.
pub fn option<'a>(words: &'a [String], name: &str) -> Option<&'a str> {
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let Some(value) = word.strip_prefix("--").and_then(|word| word.strip_prefix(name)) else {
            continue;
        };
        match value.strip_prefix('=') {
            Some(value) => return Some(value),
            // A shell may pass the `=` as a separate word.
            None if value.is_empty() => return rest.find(|word| *word != "=").map(String::as_str),
            None => {}
        }
    }
    None
}

struct Place<'a> {
    command: &'a Command,
    /// Option whose value is completed.
    value: Option<&'a Arg>,
    /// Number of positional arguments before the word to complete.
    count: usize,
}

impl<'a> Place<'a> {
    fn of(root: &'a Command, before: &[String]) -> Self {
        let mut place = Self {
            command: root,
            value: None,
            count: 0,
        };
        for word in before {
            if word == "=" {
                continue;
            }
            if place.value.take().is_some() {
                continue;
            }
            if let Some(name) = word.strip_prefix('-').filter(|name| !name.is_empty()) {
                let option = place.command.get_arguments().find(|arg| is_named(arg, name));
                place.value = option.filter(|arg| takes_value(arg));
            } else if let Some(next) = place.command.find_subcommand(word) {
                (place.command, place.count) = (next, 0);
            } else {
                place.count += 1;
            }
        }
        place
    }

    fn positional(&self) -> Option<&'a Arg> {
        self.command.get_positionals().nth(self.count)
    }
}

/// True if the option has this name. The name is given without its first dash: `o` for `-o`, `-output` for `--output`.
fn is_named(argument: &Arg, name: &str) -> bool {
    match name.strip_prefix('-') {
        Some(long) => argument.get_long() == Some(long),
        None => argument.get_short().is_some_and(|short| name.chars().eq([short])),
    }
}

fn takes_value(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::Set | ArgAction::Append)
}

type Candidate = (String, String);

fn first_line(help: Option<&clap::builder::StyledStr>) -> String {
    let help = help.map(ToString::to_string).unwrap_or_default();
    help.lines().next().unwrap_or_default().trim().to_owned()
}

fn commands(command: &Command) -> Vec<Candidate> {
    let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    shown
        .map(|sub| (sub.get_name().to_owned(), first_line(sub.get_about())))
        .collect()
}

fn flags(command: &Command) -> Vec<Candidate> {
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let named = shown.filter_map(|arg| Some((format!("--{}", arg.get_long()?), first_line(arg.get_help()))));
    named.collect()
}

fn without_help(names: Vec<String>) -> Vec<Candidate> {
    names.into_iter().map(|name| (name, String::new())).collect()
}

/// Returns the values that an argument takes, and the directive.
fn values(argument: &Arg, names: impl FnOnce(Names) -> Vec<String>) -> (Vec<Candidate>, u8) {
    match argument.get_id().as_str() {
        "pool" => return (without_help(names(Names::Pools)), NO_FILES),
        "node" | "leave" => return (without_help(names(Names::Nodes)), NO_FILES),
        "what_if" => {
            let fields = names(Names::Fields).into_iter().map(|field| field + "=");
            return (without_help(fields.collect()), NO_FILES | NO_SPACE);
        }
        _ => {}
    }
    let possible = argument.get_possible_values();
    let shown = possible.iter().filter(|value| !value.is_hide_set());
    let shown: Vec<_> = shown
        .map(|value| (value.get_name().to_owned(), first_line(value.get_help())))
        .collect();
    let is_file = shown.is_empty() && matches!(argument.get_value_hint(), ValueHint::AnyPath | ValueHint::FilePath);
    (shown, if is_file { FILES } else { NO_FILES })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::arguments::Arguments;

    fn completed(words: &[&str]) -> Vec<String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        fn names(names: Names) -> Vec<String> {
            match names {
                Names::Pools => vec!["infra".to_owned(), "workers".to_owned()],
                Names::Nodes => vec!["n1".to_owned(), "n2".to_owned()],
                Names::Fields => vec!["rollout.paused".to_owned()],
            }
        }
        let text = complete(Arguments::command(), &words, names);
        let firsts = text.lines().filter_map(|line| line.split('\t').next());
        firsts.map(str::to_owned).collect()
    }

    #[test]
    fn the_next_word_is_a_command_a_name_a_flag_or_a_value() {
        let table: [(&[&str], &[&str]); 15] = [
            (&["doc"], &["doctor", ":4"]),
            (&["doctor", "--manifests", ""], &[":0"]),
            (&["sta"], &["status", ":4"]),
            (&["hold", ""], &["n1", "n2", ":4"]),
            (&["--context", "east", "explain", "n2"], &["n2", ":4"]),
            (&["status", "w"], &["workers", ":4"]),
            (&["pause", "--all", "i"], &["infra", ":4"]),
            (&["history", "--node", ""], &["n1", "n2", ":4"]),
            (&["status", "workers", "--prev"], &["--preview", ":4"]),
            (&["status", "-o", "j"], &["json", ":4"]),
            (&["status", "--output", "=", "j"], &["json", ":4"]),
            (&["explain", "n1", "--what-if", "roll"], &["rollout.paused=", ":6"]),
            (&["timeline", "workers", "--svg", ""], &[":0"]),
            (&["dashboard", "w"], &["workers", ":4"]),
            (&["dashboard", "--no"], &["--no-open", ":4"]),
        ];
        for (words, expected) in table {
            assert_eq!(completed(words), expected, "{words:?}");
        }
        let commands = completed(&[""]);
        assert!(commands.contains(&"unhold".to_owned()) && !commands.contains(&"__complete".to_owned()));
        assert!(
            completed(&["status", "workers", ""]).contains(&"--preview".to_owned()),
            "only flags are left"
        );
    }

    #[test]
    fn an_option_is_found_in_either_form() {
        fn words(text: &str) -> Vec<String> {
            text.split(' ').map(str::to_owned).collect::<Vec<_>>()
        }
        assert_eq!(option(&words("status --context east w"), "context"), Some("east"));
        assert_eq!(option(&words("--context=east status"), "context"), Some("east"));
        assert_eq!(option(&words("--context = east status"), "context"), Some("east"));
        assert_eq!(option(&words("--contexts east"), "context"), None);
    }
}
