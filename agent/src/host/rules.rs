//! Files in which the host says what it may be given.

use std::io::ErrorKind;

use berth_core::agent::rules::registries::{self, Registries};
use berth_core::agent::rules::signatures::{self, Policy};

use super::files;
use super::root::HostRoot;

/// Registries from which the host may be given an image.
pub(super) fn registries(root: &HostRoot, flags: &[String]) -> Registries {
    let text = match files::read_bounded(&root.path(registries::FILE), registries::MAX_LENGTH) {
        Ok(text) if text.len() > registries::MAX_LENGTH => Some(Err("it is too long".to_owned())),
        Ok(text) => Some(String::from_utf8(text).map_err(|error| error.to_string())),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => Some(Err(format!("cannot be read: {error}"))),
    };
    let text = text.as_ref().map(|text| text.as_deref().map_err(String::clone));
    Registries::new(flags, text)
}

/// The host's signature policy.
pub(super) fn policy(root: &HostRoot) -> Policy {
    for path in signatures::PLACES {
        // On some hosts it is a link, which is to be followed as the host would follow it.
        let read = root
            .resolve(path)
            .and_then(|file| files::read_bounded(&file, signatures::MAX_LENGTH));
        match read {
            Ok(text) => return Policy::parse(path, &text),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Policy::Unusable(format!("{path} cannot be read: {error}")),
        }
    }
    Policy::Missing
}
