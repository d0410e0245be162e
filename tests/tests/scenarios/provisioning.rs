//! The examples for provisioning a machine's first boot, each checked by the validator of the program that reads it.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use berth_core::firstboot::config::Config;
use berth_tests::programs::{read, workspace_root};
use berth_tests::scratch::Scratch;
use berth_tests::tools::{cache_dir, find_program};
use serde_json::Value;

/// Text before an example, the file that the example creates, its validator with arguments, and a replacement that
/// makes the example invalid.
type Kind<'a> = (&'a str, &'a str, &'a str, &'a [&'a str], (&'a str, &'a str));

/// The first fenced block after this text.
fn example(page: &str, words: &str) -> Result<String> {
    let found = page.split_once(words).and_then(|(_, rest)| rest.split_once("\n```"));
    let block = found.and_then(|(_, rest)| rest.split_once('\n')?.1.split_once("```"));
    let (text, _) = block.with_context(|| format!("docs/boot-images.md has no example after {words:?}"))?;
    Ok(text.to_owned())
}

/// Runs a validator on a file. Returns true if it accepts the file, and its output.
fn validated(program: &str, arguments: &[&str], file: &Path) -> Result<(bool, String)> {
    let program = find_program(program).with_context(|| {
        format!("{program} is not on PATH; make test installs it into the cache, or lists the missing packages")
    })?;
    let output = Command::new(program).args(arguments).arg(file).output()?;
    let words = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8_lossy(&words).into_owned()))
}

/// The configuration of the first boot, as the agent reads it.
fn parsed(content: Option<&str>) -> Result<Config> {
    let content = content.context("the example writes no firstboot.toml")?;
    Config::parse(content.as_bytes()).with_context(|| content.to_owned())
}

#[test]
fn provisioning_examples_are_valid() -> Result<()> {
    let page = read("docs/boot-images.md")?;
    let schema = cache_dir()?.join("tools/cloud-config.json");
    let schema = schema.to_string_lossy();
    let scratch = Scratch::new("berth-provisioning-")?;
    let kinds: [Kind<'_>; 3] = [
        (
            "With Ignition",
            "machine.bu",
            "butane",
            &["--strict", "--check"],
            ("mode: 0600", "mode: 9999"),
        ),
        (
            "With cloud-init",
            "user-data.yaml",
            "check-jsonschema",
            &["--schemafile", &schema],
            ("permissions: \"0600\"", "permissions: 0600"),
        ),
        ("With kickstart", "machine.ks", "ksvalidator", &[], ("%end", "%ned")),
    ];
    for (words, name, validator, arguments, (right, wrong)) in kinds {
        // `scripts/need.sh` sets the variable if it cannot reach pypi.org.
        if env::var_os("BERTH_TEST_WITHOUT_PYPI").is_some() && find_program(validator).is_none() {
            println!("UNREACHABLE: {validator} for {name}: https://pypi.org cannot be reached");
            continue;
        }
        let text = example(&page, words)?;
        let file = scratch.path().join(name);
        fs::write(&file, &text)?;
        let (valid, said) = validated(validator, arguments, &file)?;
        ensure!(valid, "{validator}: {said}");
        ensure!(text.contains(right), "{name}: {text}");
        fs::write(&file, text.replace(right, wrong))?;
        let (valid, said) = validated(validator, arguments, &file)?;
        ensure!(!valid, "{validator} accepts {wrong:?}: {said}");
    }
    Ok(())
}

#[test]
fn provisioning_examples_are_read_by_the_agent() -> Result<()> {
    let page = read("docs/boot-images.md")?;
    let butane: Value = serde_saphyr::from_str(&example(&page, "With Ignition")?)?;
    let file = &butane["storage"]["files"][0];
    ensure!(file["path"] == berth_core::firstboot::config::PATH, "{file}");
    parsed(file["contents"]["inline"].as_str())?;
    let unit = butane["systemd"]["units"][0]["name"].as_str().context("no unit")?;
    ensure!(workspace_root().join("systemd").join(unit).is_file(), "{unit}");

    let cloud: Value = serde_saphyr::from_str(&example(&page, "With cloud-init")?)?;
    let file = &cloud["write_files"][0];
    ensure!(file["path"] == berth_core::firstboot::config::PATH, "{file}");
    parsed(file["content"].as_str())?;

    let kickstart = example(&page, "With kickstart")?;
    let here = kickstart
        .split_once("<<'END'\n")
        .and_then(|(_, rest)| rest.split_once("END\n"));
    parsed(here.map(|(content, _)| content))?;
    ensure!(kickstart.contains(&format!("systemctl enable {unit}")), "{kickstart}");

    let whole = parsed(Some(&example(
        &page,
        "counts in place of the image's label of that kind",
    )?))?;
    ensure!(whole.pivot && whole.limit.minimum_version.is_some(), "{whole:?}");
    Ok(())
}
