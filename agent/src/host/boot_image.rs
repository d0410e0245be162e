//! Reads the installer's note (the "aleph" file) about the image that the machine was installed from.
//!
//! A shell on the host reads the note for the agent. With `/sysroot` mounted in its pod, the agent could read every
//! deployment's `/etc`, and so the keys of a control plane.

use berth_api::boot_image::NodeBootImage;
use berth_core::skew::aleph::{self, MAX_LENGTH, PLACES};
use berth_core::skew::ignition;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::error::HostError;
use super::handle::Host;

impl Host {
    /// Returns the image that the machine was installed from; `None` if the installer left no note.
    pub async fn boot_image(&self) -> Result<Option<NodeBootImage>, HostError> {
        let output = self.tools.run("boot-image", &["/usr/bin/sh", "-c", &script()]).await?;
        Ok(parse(&output))
    }
}

/// Returns the shell script that reads the installer's note. Line 1 of the output is Ignition's result; the line is
/// empty if the host has none. The script reads only the first note that exists in [`PLACES`]. Line 2 begins with the
/// index of that note's place. The rest of the line has the note's creation and change times (Unix seconds), or a word
/// that shows why the note cannot be read, such as `missing`. The note's text follows.
fn script() -> String {
    let places = PLACES.join(" ");
    let most = MAX_LENGTH + 1;
    let result = ignition::RESULT;
    let most_of_it = ignition::MAX_LENGTH + 1;
    format!(
        r#"if [ -f {result} ] && [ ! -L {result} ]; then
  head -c {most_of_it} {result} | tr '\n\000' '  '
fi
echo
n=0
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

pub(super) fn parse(output: &str) -> Option<NodeBootImage> {
    let (result, output) = output.split_once('\n')?;
    let (head, note) = output.split_once('\n')?;
    let mut words = head.split_whitespace();
    let place = PLACES.get(words.next()?.parse::<usize>().ok()?)?;
    let times: Vec<&str> = words.collect();
    let note = match times.as_slice() {
        ["missing"] => Err("it is a broken link".to_owned()),
        ["special"] => Err("it is not a regular file".to_owned()),
        ["outside"] => Err("it is a link that leads out of /sysroot, and Berth does not follow such links".to_owned()),
        _ => Ok(note.as_bytes()),
    };
    // Some file systems record no creation time. Then use the time of the last change, because nothing changes the
    // note.
    let seconds = times
        .iter()
        .filter_map(|time| time.parse().ok())
        .find(|time: &i64| *time > 0);
    let written = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    Some(NodeBootImage {
        provisioned_time: ignition::provisioned(result.as_bytes()).or(written).map(Time),
        ..aleph::read(place, note)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    fn at(scratch: &Path, path: &str) -> PathBuf {
        scratch.join(path.trim_start_matches('/'))
    }

    fn look(scratch: &Path) -> Option<NodeBootImage> {
        let mut script = script();
        for directory in ["/sysroot/", "/etc/"] {
            script = script.replace(
                directory,
                &format!("{}/", at(scratch, directory.trim_end_matches('/')).display()),
            );
        }
        let done = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        parse(&String::from_utf8_lossy(&done.stdout))
    }

    fn provisioned(scratch: &Path) -> Time {
        look(scratch).unwrap().provisioned_time.unwrap()
    }

    #[test]
    fn the_first_note_counts_and_no_link_leads_out() {
        let scratch = std::env::temp_dir().join(format!("berth-aleph-{}", std::process::id()));
        let _ = fs::remove_dir_all(&scratch);
        assert_eq!(look(&scratch), None);
        fs::create_dir_all(at(&scratch, "/sysroot")).unwrap();
        fs::create_dir_all(at(&scratch, "/etc")).unwrap();
        assert_eq!(look(&scratch), None);
        let [bootc, coreos, osbuild] = PLACES.map(|place| at(&scratch, place));
        fs::write(&osbuild, r#"{"version":"9.6.20251023-0"}"#).unwrap();
        symlink(".aleph-version.json", &coreos).unwrap();
        let found = look(&scratch).unwrap();
        assert_eq!(
            (found.source.as_str(), found.version.as_deref()),
            (PLACES[1], Some("9.6.20251023-0"))
        );
        let written = found.provisioned_time.unwrap();
        // Ignition's result comes first and may have many lines. An invalid result changes nothing.
        let result = at(&scratch, ignition::RESULT);
        fs::write(&result, "{\n  \"provisioningDate\": \"2021-01-25T15:17:13Z\"\n}\n").unwrap();
        assert_eq!(provisioned(&scratch).0.to_string(), "2021-01-25T15:17:13Z");
        assert_eq!(look(&scratch).unwrap().version.as_deref(), Some("9.6.20251023-0"));
        let mut long = br#"{"provisioningDate": "2021-01-25T15:17:13Z"}"#.to_vec();
        long.resize(ignition::MAX_LENGTH + 10, b' ');
        for wrong in [&b"{\"provisioningDate\":"[..], b"\0\xff\n\r{}", b"", &long] {
            fs::write(&result, wrong).unwrap();
            assert_eq!(provisioned(&scratch), written);
            assert_eq!(look(&scratch).unwrap().version.as_deref(), Some("9.6.20251023-0"));
        }
        fs::remove_file(&result).unwrap();
        fs::write(
            at(&scratch, "/etc/other.json"),
            r#"{"provisioningDate": "2021-01-25T15:17:13Z"}"#,
        )
        .unwrap();
        symlink("other.json", &result).unwrap();
        assert_eq!(provisioned(&scratch), written, "a link is not followed");
        fs::remove_file(&result).unwrap();
        mkfifo(&result, Mode::S_IRWXU).unwrap();
        assert_eq!(provisioned(&scratch), written, "a pipe is not waited for");
        fs::remove_file(&result).unwrap();
        fs::write(at(&scratch, "/etc/passwd"), r#"{"version":"1"}"#).unwrap();
        symlink("../etc/passwd", &bootc).unwrap();
        let found = look(&scratch).unwrap();
        assert_eq!((found.source.as_str(), found.version), (PLACES[0], None));
        assert!(found.error.unwrap().contains("leads out of /sysroot"));
        fs::remove_file(&bootc).unwrap();
        symlink(".gone.json", &bootc).unwrap();
        assert!(look(&scratch).unwrap().error.unwrap().contains("broken link"));
        fs::remove_file(&bootc).unwrap();
        // A read of a FIFO would wait forever.
        mkfifo(&bootc, Mode::S_IRWXU).unwrap();
        assert!(look(&scratch).unwrap().error.unwrap().contains("not a regular file"));
        fs::remove_file(&bootc).unwrap();
        fs::write(&bootc, vec![b' '; MAX_LENGTH + 10]).unwrap();
        assert!(look(&scratch).unwrap().error.unwrap().contains("longer than"));
        fs::remove_dir_all(&scratch).unwrap();
    }

    #[test]
    fn any_output_is_taken() {
        for output in [
            "",
            "\n",
            "\n0",
            "\n7 1 1\n{}",
            "\nx missing\n",
            "{}\n0 - -\n{}",
            "{\n1 99999999999999999 1\n{}",
        ] {
            let _ = parse(output);
        }
        fn seconds(output: &str) -> i64 {
            parse(output).unwrap().provisioned_time.unwrap().0.as_second()
        }
        assert_eq!(seconds("\n0 0 5\n{}"), 5);
        assert_eq!(seconds("{\"provisioningDate\":\"1970-01-01T00:00:09Z\"}\n0 0 5\n{}"), 9);
        assert_eq!(seconds("{\"provisioningDate\":\"1970-01-01T00:00:00Z\"}\n0 7 5\n{}"), 7);
    }
}
