//! Checks that everything that the documentation names exists: keys, make targets, flags, variables, files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use berth_api::keys;
use berth_core::agent::removal;
use berth_tests::programs::{read, workspace_root};
use clap::CommandFactory;

/// Flags of other programs that the documentation names.
const FOREIGN: &str = "
    --all --allow-missing-checksum --bound-object-kind --bound-object-name --bound-object-uid --branch
    --certificate-identity --certificate-oidc-issuer --docker-password --docker-server --docker-username
    --download-only --duration --enable-admission-plugins --enforce-container-sigpolicy --experimental-composefs
    --failed --features --field-selector --for --force-conflicts --from --from-file --list --list-boots --mount
    --namespace --no-pager --now --patch --pending --preserve-digests --profile --progress-fd --raw --release --repo
    --reset-then-reuse-values --rm --root --server-side --set --sign --strict --subresource --take-ownership --target
    --test --type --unlock --world";

fn pages() -> Result<Vec<(PathBuf, String)>> {
    let root = workspace_root();
    let mut files = vec![root.join("README.md")];
    for directory in ["docs", "docs/install", "docs/runbooks"] {
        files.extend(fs::read_dir(root.join(directory))?.flatten().map(|entry| entry.path()));
    }
    files.retain(|file| file.extension().is_some_and(|e| e == "md"));
    files.sort();
    files
        .into_iter()
        .map(|file: PathBuf| {
            let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
            Ok((file, text))
        })
        .collect()
}

/// The code of a page: lines of fenced blocks, and text between backticks.
fn code(page: &str) -> Vec<String> {
    let mut code = Vec::new();
    let mut fenced = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced {
            // A comment at the end of a line is prose.
            code.push(line.split(" # ").next().unwrap_or(line).trim().to_owned());
        } else {
            code.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    code
}

/// Words of a text that have this prefix, followed by these characters.
fn words<'a>(text: &'a str, prefix: &'a str, part: fn(char) -> bool) -> impl Iterator<Item = &'a str> {
    text.match_indices(prefix).filter_map(move |(at, _)| {
        let before = text[..at].chars().next_back();
        let rest = &text[at + prefix.len()..];
        let end = rest.find(|c| !part(c)).unwrap_or(rest.len());
        let is_start = before.is_none_or(|c| !(part(c) || c == '-')) && rest.starts_with(char::is_alphabetic);
        is_start.then(|| &text[at..at + prefix.len() + end])
    })
}

fn is_flag(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'
}

fn has_flag(help: &str, flag: &str) -> bool {
    words(help, "--", is_flag).any(|known| known == flag)
}

fn is_variable(c: char) -> bool {
    c.is_ascii_uppercase() || c == '_'
}

fn help(mut command: clap::Command) -> String {
    command.build();
    let mut text = command.clone().render_long_help().to_string();
    for sub in command.get_subcommands_mut() {
        text += &sub.render_long_help().to_string();
    }
    text
}

fn helps() -> [(&'static str, String); 3] {
    [
        ("berth-agent", help(berth_agent::cli::Args::command())),
        ("berth-controller", help(berth_controller::cli::Cli::command())),
        ("kubectl berth", help(kubectl_berth::arguments::Arguments::command())),
    ]
}

#[test]
fn the_table_of_keys_is_the_keys() -> Result<()> {
    let source = read("api/src/keys.rs")?;
    let constants = source
        .lines()
        .filter_map(|line| line.strip_prefix("pub const ")?.split('"').nth(1));
    let keys: BTreeSet<&str> = constants.filter(|value| value.starts_with("berth.dev/")).collect();
    let page = read("docs/keys.md")?;
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `berth.dev/")?.split('`').next());
    let rows: Vec<String> = rows.map(|rest| format!("berth.dev/{rest}")).collect();
    let listed: BTreeSet<&str> = rows.iter().map(String::as_str).collect();
    ensure!(rows.len() == listed.len(), "the table lists a key twice: {rows:?}");
    ensure!(
        !keys.is_empty() && keys == listed,
        "the code has {keys:#?}, the page {listed:#?}"
    );
    Ok(())
}

/// `kubectl berth uninstall` must remove every key of Berth from Nodes.
#[test]
fn an_uninstall_knows_every_key_on_nodes() -> Result<()> {
    let page = read("docs/keys.md")?;
    let mut named = 0;
    for row in page.lines().filter(|line| line.starts_with("| `berth.dev/")) {
        let mut columns = row.split('|').map(str::trim).skip(1);
        let (key, on) = (columns.next().unwrap_or_default(), columns.next().unwrap_or_default());
        if on == "Node" || on.starts_with("Node ") {
            let key = key.trim_matches('`');
            let known = keys::NODE_LABELS.contains(&key) || keys::NODE_ANNOTATIONS.contains(&key);
            ensure!(known, "no uninstall takes {key} off a Node");
            named += 1;
        }
    }
    ensure!(named >= 8, "{named} keys on Nodes");
    Ok(())
}

/// The page has the same list of files as the program that removes them.
#[test]
fn the_page_on_removal_names_every_file() -> Result<()> {
    let page = read("docs/install/removal.md")?;
    let lists = [
        removal::LINKS.as_slice(),
        &removal::FILES,
        &removal::DIRECTORIES,
        &removal::EMPTY_DIRECTORIES,
        &removal::KEPT,
        &[removal::RUN_DIR],
    ];
    for path in lists.concat() {
        // Two directories are named once, by `cd`.
        let short = ["/etc/systemd/system/", "/etc/berth/"]
            .iter()
            .find_map(|top| path.strip_prefix(top));
        let is_named = [Some(path), short]
            .into_iter()
            .flatten()
            .any(|path| page.split([' ', '\n', '`']).any(|word| word == path) || page.contains(&format!("{path} ")));
        ensure!(is_named, "docs/install/removal.md does not name {path}");
    }
    Ok(())
}

#[test]
fn every_make_target_exists() -> Result<()> {
    let makefile = read("Makefile")?;
    let targets: BTreeSet<&str> = makefile
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name)
        .filter(|name| !name.is_empty() && name.chars().all(is_flag))
        .collect();
    let mut named = 0;
    for (file, page) in pages()? {
        for line in code(&page).iter().filter_map(|line| line.strip_prefix("make ")) {
            let target = line.split_whitespace().next().unwrap_or_default();
            ensure!(targets.contains(target), "{}: no make {target}", file.display());
            named += 1;
        }
    }
    ensure!(named > 0, "the documentation names no target at all");
    Ok(())
}

#[test]
fn every_flag_exists() -> Result<()> {
    let helps = helps();
    let mut named = 0;
    for (file, page) in pages()? {
        for line in code(&page) {
            let program = helps.iter().find(|(name, _)| line.starts_with(name));
            for flag in words(&line, "--", is_flag) {
                let known = match program {
                    Some((_, help)) => has_flag(help, flag),
                    None => {
                        FOREIGN.split_whitespace().any(|foreign| foreign == flag)
                            || helps.iter().any(|(_, help)| has_flag(help, flag))
                    }
                };
                ensure!(known, "{}: no program has {flag}, in: {line}", file.display());
                named += 1;
            }
        }
    }
    ensure!(named > 0, "the documentation names no flag at all");
    Ok(())
}

#[test]
fn the_page_of_commands_has_every_command() -> Result<()> {
    let page = read("docs/cli.md")?;
    let command = kubectl_berth::arguments::Arguments::command();
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let name = format!("`{}`", sub.get_name());
        let is_row = page.lines().any(|line| line.starts_with('|') && line.contains(&name));
        ensure!(is_row, "docs/cli.md has no row of {name}");
    }
    Ok(())
}

/// Manifests and units may use only flags that exist.
#[test]
fn every_flag_of_manifests_and_units_exists() -> Result<()> {
    let [(_, agent), (_, controller), _] = helps();
    for (file, help) in [
        ("manifests/base/agent-daemonset.yaml", &agent),
        ("manifests/base/controller-deployment.yaml", &controller),
        ("systemd/berth-agent.service", &agent),
        ("systemd/berth-firstboot.service", &agent),
    ] {
        let text = read(file)?;
        for flag in words(&text, "--", is_flag) {
            ensure!(has_flag(help, flag), "{file}: no flag {flag}");
        }
    }
    Ok(())
}

#[test]
fn every_help_is_a_manual_page() -> Result<()> {
    for (name, help) in helps() {
        for part in [
            "Usage:",
            "EXIT STATUS",
            "EXAMPLES",
            "FILES",
            "--help",
            "--version",
            "HTTPS_PROXY",
            "NO_PROXY",
        ] {
            ensure!(help.contains(part), "the help of {name} has no {part}");
        }
        let wide = help.lines().find(|line| line.chars().count() > 120);
        ensure!(wide.is_none(), "the help of {name} has a wide line: {wide:?}");
    }
    Ok(())
}

fn sources(directory: &Path, into: &mut String) -> Result<()> {
    for entry in fs::read_dir(directory)?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, into)?;
        } else if path.extension().is_some_and(|e| e == "rs" || e == "sh") {
            into.push_str(&fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

#[test]
fn variables_of_the_tests_are_documented_and_exist() -> Result<()> {
    let root = workspace_root();
    let mut source = String::new();
    for directory in ["agent/src", "controller/src", "cli", "tests/src", "scripts"] {
        sources(&root.join(directory), &mut source)?;
    }
    let page = read("docs/testing.md")?;
    let documented: BTreeSet<&str> = words(&page, "BERTH_", is_variable).collect();
    let used: BTreeSet<&str> = words(&source, "BERTH_", is_variable).collect();
    for name in &documented {
        ensure!(used.contains(name), "docs/testing.md has {name}, which nothing reads");
    }
    for name in used.iter().filter(|name| name.starts_with("BERTH_TEST_")) {
        ensure!(documented.contains(name), "{name} is not in docs/testing.md");
    }
    Ok(())
}

#[test]
fn tests_that_the_security_page_names_exist() -> Result<()> {
    let root = workspace_root();
    let mut source = String::new();
    for directory in ["agent", "controller", "core", "tests"] {
        sources(&root.join(directory), &mut source)?;
    }
    let mut named = 0;
    for span in code(&read("docs/security.md")?) {
        let is_test = span.split('_').count() > 2 && span.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        if is_test {
            ensure!(
                source.contains(&format!("fn {span}(")),
                "docs/security.md: there is no test {span}"
            );
            named += 1;
        }
    }
    ensure!(named > 30, "docs/security.md names only {named} tests");
    Ok(())
}

#[test]
fn files_that_the_pages_name_exist() -> Result<()> {
    let root = workspace_root();
    let tops = "api/ core/ agent/ charts/ controller/ cli/ model/ tests/ docs/ manifests/ systemd/ scripts/";
    for (file, page) in pages()? {
        for span in code(&page) {
            let is_path = tops.split(' ').any(|top| span.starts_with(top));
            if is_path
                && span
                    .chars()
                    .all(|c: char| c.is_ascii_alphanumeric() || "/._-".contains(c))
            {
                ensure!(root.join(&span).exists(), "{}: {span} does not exist", file.display());
            }
        }
    }
    Ok(())
}
