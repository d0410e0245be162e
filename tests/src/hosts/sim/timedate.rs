//! `org.freedesktop.timedate1` on the bus of a simulated host: whether its clock is synchronized.

use zbus::{Connection, fdo, interface};

use super::settings::SharedSettings;

pub(super) async fn serve(conn: &Connection, settings: &SharedSettings) -> zbus::Result<()> {
    conn.object_server()
        .at(
            "/org/freedesktop/timedate1",
            Timedate {
                settings: settings.clone(),
            },
        )
        .await?;
    conn.request_name("org.freedesktop.timedate1").await
}

struct Timedate {
    settings: SharedSettings,
}

#[interface(name = "org.freedesktop.timedate1")]
impl Timedate {
    // As with the real one, changes emit no PropertiesChanged.
    #[zbus(property(emits_changed_signal = "false"), name = "NTPSynchronized")]
    async fn ntp_synchronized(&self) -> fdo::Result<bool> {
        let said = self.settings.with(|s| s.clock_synchronized);
        said.ok_or_else(|| fdo::Error::Failed("the simulated clock state is unknown".to_owned()))
    }
}
