//! Opens the admin's browser.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Program that opens an address in the desktop's browser.
const OPENER: &str = "xdg-open";

/// Opens an address in a browser. Does nothing without a desktop: a text browser would take over the terminal. Ignores
/// errors, because the address is printed, too.
pub(super) fn open(address: &str) {
    let displays = ["DISPLAY", "WAYLAND_DISPLAY"].map(std::env::var_os);
    if !has_desktop(displays.iter().map(Option::as_deref)) {
        return;
    }
    let mut command = Command::new(OPENER);
    command
        .arg(address)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Ctrl-C must not end a browser that was started for the page.
        .process_group(0);
    let Ok(mut started) = command.spawn() else { return };
    // Without a wait, the ended program would stay as a zombie.
    std::thread::spawn(move || drop(started.wait()));
}

fn has_desktop<'a>(displays: impl IntoIterator<Item = Option<&'a OsStr>>) -> bool {
    displays.into_iter().flatten().any(|display| !display.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_desktop_has_a_display() {
        let display = Some(OsStr::new(":0"));
        assert!(has_desktop([None, display]));
        assert!(!has_desktop([None, Some(OsStr::new(""))]));
    }
}
