//! The note about the image that the machine was installed from.
//!
//! The host reads it for the agent: `/sysroot` in the agent's pod would show it all deployments with their `/etc`, the keys of
//! a control plane among them.

use berth_api::boot_image::NodeBootImage;
use berth_core::skew::aleph::{self, MAX_LENGTH, PLACES};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Host, HostError};

impl Host {
    /// The image that the machine was installed from; `None` where the installer noted none.
    ///
    /// # Errors
    /// Whatever kept the host from looking.
    pub async fn boot_image(&self) -> Result<Option<NodeBootImage>, HostError> {
        let output = self.tools.run("boot-image", &["/usr/bin/sh", "-c", &script()]).await?;
        Ok(parse(&output))
    }
}

/// A script that prints the first note that is there: a line with its number, and its times of birth and change or what keeps
/// it from being read; then the note.
fn script() -> String {
    let places = PLACES.join(" ");
    let most = MAX_LENGTH + 1;
    format!(
        r#"n=0
for note in {places}; do
  if [ -e "$note" ] || [ -L "$note" ]; then
    real=$(readlink -e "$note")
    case "$real" in
      /sysroot/*) [ -f "$real" ] || {{ echo "$n special"; exit 0; }}
        echo "$n $(stat -c '%W %Y' "$real")"; head -c {most} "$real" ;;
      '') echo "$n missing" ;;
      *) echo "$n outside" ;;
    esac
    exit 0
  fi
  n=$((n + 1))
done"#
    )
}

fn parse(output: &str) -> Option<NodeBootImage> {
    let (head, note) = output.split_once('\n')?;
    let mut words = head.split_whitespace();
    let place = PLACES.get(words.next()?.parse::<usize>().ok()?)?;
    let times: Vec<&str> = words.collect();
    let note = match times.as_slice() {
        ["missing"] => Err("it is a link that leads nowhere".to_owned()),
        ["special"] => Err("it is no ordinary file".to_owned()),
        ["outside"] => Err("it is a link that leads out of /sysroot, which is not followed".to_owned()),
        _ => Ok(note.as_bytes()),
    };
    // Nobody writes it again: where the file system does not keep its birth, the last change is the same.
    let seconds = times
        .iter()
        .filter_map(|time| time.parse().ok())
        .find(|time: &i64| *time > 0);
    let written = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    Some(NodeBootImage {
        provisioned_time: written.map(Time),
        ..aleph::read(place, note)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn the_first_note_counts_and_no_link_leads_out() {
        let scratch = std::env::temp_dir().join(format!("berth-aleph-{}", std::process::id()));
        let _ = fs::remove_dir_all(&scratch);
        let at = |path: &str| scratch.join(path.trim_start_matches('/'));
        let look = || {
            let script = script().replace("/sysroot/", &format!("{}/", at("/sysroot").display()));
            let done = Command::new("sh").args(["-c", &script]).output().unwrap();
            assert!(done.status.success(), "{done:?}");
            parse(&String::from_utf8(done.stdout).unwrap())
        };
        assert_eq!(look(), None);
        fs::create_dir_all(at("/sysroot")).unwrap();
        fs::create_dir_all(at("/etc")).unwrap();
        assert_eq!(look(), None);
        let [bootc, coreos, osbuild] = PLACES.map(at);
        fs::write(&osbuild, r#"{"version":"9.6.20251023-0"}"#).unwrap();
        symlink(".aleph-version.json", &coreos).unwrap();
        let found = look().unwrap();
        assert_eq!(
            (found.source.as_str(), found.version.as_deref()),
            (PLACES[1], Some("9.6.20251023-0"))
        );
        assert!(found.provisioned_time.is_some());
        fs::write(at("/etc/passwd"), r#"{"version":"1"}"#).unwrap();
        symlink("../etc/passwd", &bootc).unwrap();
        let found = look().unwrap();
        assert_eq!((found.source.as_str(), found.version), (PLACES[0], None));
        assert!(found.error.unwrap().contains("leads out of /sysroot"));
        fs::remove_file(&bootc).unwrap();
        symlink(".gone.json", &bootc).unwrap();
        assert!(look().unwrap().error.unwrap().contains("leads nowhere"));
        fs::remove_file(&bootc).unwrap();
        // What nobody writes to would be read for ever.
        mkfifo(&bootc, Mode::S_IRWXU).unwrap();
        assert!(look().unwrap().error.unwrap().contains("no ordinary file"));
        fs::remove_file(&bootc).unwrap();
        fs::write(&bootc, vec![b' '; MAX_LENGTH + 10]).unwrap();
        assert!(look().unwrap().error.unwrap().contains("longer than"));
        fs::remove_dir_all(&scratch).unwrap();
    }

    #[test]
    fn any_output_is_taken() {
        for output in [
            "",
            "\n",
            "0",
            "7 1 1\n{}",
            "x missing\n",
            "0 - -\n{}",
            "1 99999999999999999 1\n{}",
        ] {
            let _ = parse(output);
        }
        assert_eq!(parse("0 0 5\n{}").unwrap().provisioned_time.unwrap().0.as_second(), 5);
    }
}
