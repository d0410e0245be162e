//! D-Bus errors with the names that a host's services use.

use zbus::message::{Header, Message};
use zbus::names::ErrorName;

#[derive(Debug, Clone)]
pub(crate) struct NamedError {
    name: ErrorName<'static>,
    message: String,
}

impl NamedError {
    /// An error with this full name, or `…Error.Failed` if the name is invalid.
    pub(crate) fn new(name: &str, message: impl Into<String>) -> Self {
        let failed = ErrorName::from_static_str_unchecked("org.freedesktop.DBus.Error.Failed");
        Self {
            name: ErrorName::try_from(name.to_owned()).unwrap_or(failed),
            message: message.into(),
        }
    }

    /// An error of systemd. `name` is the last part of the error's full name.
    pub(crate) fn systemd(name: &str, message: impl Into<String>) -> Self {
        Self::new(&format!("org.freedesktop.systemd1.{name}"), message)
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new("org.freedesktop.DBus.Error.InvalidArgs", message)
    }
}

impl std::fmt::Display for NamedError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.name, self.message)
    }
}

impl zbus::DBusError for NamedError {
    fn create_reply(&self, call: &Header<'_>) -> zbus::Result<Message> {
        Message::error(call, self.name.clone()).build(&(self.message.as_str(),))
    }

    fn name(&self) -> ErrorName<'_> {
        self.name.clone()
    }

    fn description(&self) -> Option<&str> {
        Some(&self.message)
    }
}

impl From<zbus::Error> for NamedError {
    fn from(error: zbus::Error) -> Self {
        Self::new("org.freedesktop.DBus.Error.Failed", error.to_string())
    }
}
