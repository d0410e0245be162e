//! Reads a kubeconfig. Its size is limited, and errors do not quote it, because it may contain credentials.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};
use kube::config::{Kubeconfig, KubeconfigError};

/// Longest kubeconfig, and longest file that it names, in bytes.
pub const MAX_LENGTH: u64 = 1 << 20;

/// Reads a kubeconfig. Relative paths in it are relative to its directory.
///
/// # Errors
/// When the file is too long or invalid.
pub fn read(path: &Path) -> anyhow::Result<Kubeconfig> {
    let mut text = String::new();
    let file = File::open(path)?;
    // Read one byte more, to notice a longer file.
    file.take(MAX_LENGTH + 1).read_to_string(&mut text)?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > MAX_LENGTH {
        bail!("the file is longer than {MAX_LENGTH} bytes");
    }
    let text = text.trim_start_matches('\u{feff}');
    let mut found = Kubeconfig::from_yaml(text).map_err(|error| without_text(&error))?;
    for path in files(&mut found, path.parent()) {
        check_length(Path::new(&path))?;
    }
    Ok(found)
}

/// Describes the error. The text of a parser's error quotes the file.
fn without_text(error: &KubeconfigError) -> anyhow::Error {
    let KubeconfigError::Parse(error) = error else {
        return anyhow::anyhow!("{error}");
    };
    let place = error
        .location()
        .map(|found| format!(" at line {}, column {}", found.line(), found.column()));
    let place = place.unwrap_or_default();
    anyhow::anyhow!(
        "the file is not a valid kubeconfig{place}; its text is not shown, because it may contain credentials"
    )
}

/// Makes the paths in a kubeconfig absolute, and returns the paths of the files that are read.
fn files(kubeconfig: &mut Kubeconfig, directory: Option<&Path>) -> Vec<String> {
    let mut paths: Vec<&mut Option<String>> = vec![];
    let clusters = kubeconfig.clusters.iter_mut();
    for cluster in clusters.filter_map(|named| named.cluster.as_mut()) {
        paths.push(&mut cluster.certificate_authority);
    }
    let users = kubeconfig.auth_infos.iter_mut();
    for user in users.filter_map(|named| named.auth_info.as_mut()) {
        if let Some(exec) = &mut user.exec
            // A name without a directory is looked up in PATH.
            && exec.command.as_ref().is_some_and(|command| command.contains('/'))
        {
            make_absolute(&mut exec.command, directory);
        }
        paths.extend([&mut user.client_certificate, &mut user.client_key, &mut user.token_file]);
    }
    let mut all = vec![];
    for path in paths {
        make_absolute(path, directory);
        all.extend(path.clone());
    }
    all
}

fn make_absolute(path: &mut Option<String>, directory: Option<&Path>) {
    if let (Some(path), Some(directory)) = (path, directory)
        && let Some(joined) = directory.join(&*path).to_str()
    {
        *path = joined.to_owned();
    }
}

/// Fails if the file is longer than [`MAX_LENGTH`]. A missing file is an error only where it is read.
///
/// # Errors
/// When the file is too long.
pub fn check_length(path: &Path) -> anyhow::Result<()> {
    let length = std::fs::metadata(path).map_or(0, |file| file.len());
    if length > MAX_LENGTH {
        bail!(
            "{}, which the kubeconfig names, is longer than {MAX_LENGTH} bytes",
            path.display()
        );
    }
    Ok(())
}

/// Reads a kubeconfig, and names it in an error as `what`.
///
/// # Errors
/// As [`read`].
pub fn read_named(path: &Path, what: &str) -> anyhow::Result<Kubeconfig> {
    read(path).with_context(|| format!("cannot read {what} {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const TEXT: &str = "apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster: {server: 'https://h', \
        certificate-authority: ca.crt}\nusers:\n- name: u\n  user: {client-key: /k, token: hush-hush, \
        exec: {command: ./login}}\n";

    #[test]
    fn relative_paths_begin_at_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        fs::write(&path, TEXT).unwrap();
        let found = read(&path).unwrap();
        let cluster = found.clusters[0].cluster.as_ref().unwrap();
        let here = |name: &str| directory.path().join(name).to_str().map(str::to_owned);
        assert_eq!(cluster.certificate_authority, here("ca.crt"));
        let user = found.auth_infos[0].auth_info.as_ref().unwrap();
        assert_eq!(user.client_key.as_deref(), Some("/k"));
        assert_eq!(user.exec.as_ref().unwrap().command, here("./login"));
    }

    #[test]
    fn an_error_does_not_quote_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        for broken in [
            TEXT.replace("token: hush-hush", "token: [hush-hush]"),
            TEXT.replace("- name: u", "- hush-hush"),
            format!("{TEXT}hush-hush"),
            format!("{TEXT}x: \"hush-hush"),
        ] {
            fs::write(&path, &broken).unwrap();
            let error = format!("{:?}", read_named(&path, "the kubeconfig").unwrap_err());
            assert!(!error.contains("hush") && error.contains("line"), "{error}");
        }
    }

    #[test]
    fn long_files_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        let most = usize::try_from(MAX_LENGTH).unwrap();
        fs::write(&path, format!("{TEXT}{}", "#".repeat(most - TEXT.len()))).unwrap();
        read(&path).unwrap();
        fs::write(&path, format!("{TEXT}{}", "#".repeat(most + 1 - TEXT.len()))).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("longer than"));
        fs::write(&path, TEXT).unwrap();
        fs::write(directory.path().join("ca.crt"), vec![b'#'; most + 1]).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("ca.crt"));
    }
}
