//! D-Bus interfaces of the daemon.

use std::collections::HashMap;
use std::sync::Arc;

use zbus::message::Header;
use zbus::{ObjectPath, OwnedObjectPath, OwnedVariant, interface};

use super::begin::begin;
use super::core::{Core, gio};
use super::dictionary::{self, Dictionary};
use super::faults::Call;
use super::names::os_path;
use super::options::Options;
use super::order::{Order, Stage};
use super::transaction::Names;
use crate::named_error::NamedError;

type Given = HashMap<String, OwnedVariant>;

fn caller(header: &Header<'_>) -> Result<String, NamedError> {
    let sender = header.sender().map(ToString::to_string);
    sender.ok_or_else(|| NamedError::invalid("the call has no sender"))
}

/// Interface `…rpmostree1.Sysroot`.
pub(super) struct SysrootFace {
    pub(super) core: Arc<Core>,
}

impl SysrootFace {
    fn os(&self) -> OwnedObjectPath {
        ObjectPath::from_string_unchecked(os_path(&self.core.config.osname)).into()
    }
}

#[interface(name = "org.projectatomic.rpmostree1.Sysroot")]
impl SysrootFace {
    async fn register_client(&self, options: Given, #[zbus(header)] header: Header<'_>) -> Result<(), NamedError> {
        self.core.enter().await;
        let id = Options::new(options)?.text("id").unwrap_or_default();
        self.core.register(&caller(&header)?, &id);
        Ok(())
    }

    async fn reload(&self) -> Result<(), NamedError> {
        self.core.enter().await;
        self.core.read().await.map_err(|words| gio(0, &words))
    }

    #[zbus(name = "GetOS")]
    async fn get_os(&self, name: String) -> Result<OwnedObjectPath, NamedError> {
        self.core.enter().await;
        if name.is_empty() {
            // The real daemon crashes at this call.
            self.core.die().await;
        }
        if name == self.core.config.osname {
            return Ok(self.os());
        }
        Err(gio(1, &format!("OS name \"{name}\" not found")))
    }

    #[zbus(property(emits_changed_signal = "false"))]
    async fn booted(&self) -> OwnedObjectPath {
        self.core.enter().await;
        self.os()
    }

    #[zbus(property(emits_changed_signal = "false"))]
    async fn active_transaction(&self) -> (String, String, String) {
        self.core.enter().await;
        let active = self.core.active();
        active
            .map(|t| (t.names.method.clone(), t.names.sender.clone(), t.names.path.clone()))
            .unwrap_or_default()
    }

    #[zbus(property(emits_changed_signal = "false"))]
    async fn active_transaction_path(&self) -> String {
        self.core.enter().await;
        self.core.active().map(|t| t.address.clone()).unwrap_or_default()
    }

    #[zbus(property(emits_changed_signal = "false"))]
    async fn automatic_update_policy(&self) -> String {
        self.core.enter().await;
        self.core.config.faults.with(|f| f.policy.clone())
    }

    #[zbus(property(emits_changed_signal = "false"))]
    async fn deployments(&self) -> Vec<Dictionary> {
        self.core.enter().await;
        let broken = self.core.config.faults.with(|f| f.broken.clone());
        let all = self.core.deployments();
        all.iter().map(|d| dictionary::of(d, &broken)).collect()
    }
}

/// Interface `…rpmostree1.OS`.
pub(super) struct OsFace {
    pub(super) core: Arc<Core>,
}

impl OsFace {
    fn begin(
        &self,
        method: &str,
        arguments: &str,
        options: &Options,
        header: &Header<'_>,
        order: Order,
    ) -> Result<String, NamedError> {
        let names = Names {
            method: method.to_owned(),
            fingerprint: format!("{method} {arguments} {}", options.fingerprint()),
            title: options
                .text("initiating-command-line")
                .unwrap_or_else(|| order.title().to_owned()),
            first_title: order.first_title().to_owned(),
            sender: caller(header)?,
            path: os_path(&self.core.config.osname),
            output_to_self: options.flag("output-to-self", false),
        };
        let begun = begin(&self.core, names, order);
        let is_lost = self.core.config.faults.with(|f| {
            f.calls.push(Call {
                method: method.to_owned(),
                options: options.as_sent(),
            });
            let next = f.loses_reply_of.front().is_some_and(|lost| lost == method);
            next && f.loses_reply_of.pop_front().is_some()
        });
        if is_lost {
            // The bus returns this error if a service exits between a call and its reply.
            let error = "org.freedesktop.DBus.Error.NoReply";
            return Err(NamedError::new(error, "the reply is lost"));
        }
        begun
    }
}

/// Options of a call that stages a deployment. `allow_downgrade` is the method's default.
fn stage(options: &Options, allow_downgrade: bool) -> Stage {
    Stage {
        lock: options.flag("lock-finalization", false),
        reboot: options.flag("reboot", false),
        newer_only: !options.flag("allow-downgrade", allow_downgrade),
    }
}

#[interface(name = "org.projectatomic.rpmostree1.OS")]
impl OsFace {
    async fn rebase(
        &self,
        options: Given,
        refspec: String,
        packages: Vec<String>,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<String, NamedError> {
        self.core.enter().await;
        let options = Options::new(options)?;
        let order = Order::Rebase {
            refspec: refspec.clone(),
            revision: options.text("revision"),
            stage: stage(&options, true),
        };
        let arguments = format!("{refspec} {packages:?}");
        self.begin("Rebase", &arguments, &options, &header, order)
    }

    async fn deploy(
        &self,
        revision: String,
        options: Given,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<String, NamedError> {
        self.core.enter().await;
        let options = Options::new(options)?;
        let order = Order::Deploy {
            revision: revision.clone(),
            stage: stage(&options, true),
        };
        self.begin("Deploy", &revision, &options, &header, order)
    }

    async fn pkg_change(
        &self,
        options: Given,
        packages_added: Vec<String>,
        packages_removed: Vec<String>,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<String, NamedError> {
        self.core.enter().await;
        let options = Options::new(options)?;
        let arguments = format!("{packages_added:?} {packages_removed:?}");
        let order = Order::Packages {
            added: packages_added,
            removed: packages_removed,
            idempotent: options.flag("idempotent-layering", false),
            stage: stage(&options, true),
        };
        self.begin("PkgChange", &arguments, &options, &header, order)
    }

    async fn finalize_deployment(
        &self,
        options: Given,
        #[zbus(header)] header: Header<'_>,
    ) -> Result<String, NamedError> {
        self.core.enter().await;
        let options = Options::new(options)?;
        let order = Order::Finalize {
            checksum: options.text("checksum"),
            allow_missing: options.flag("allow-missing-checksum", false),
            allow_unlocked: options.flag("allow-unlocked", false),
        };
        self.begin("FinalizeDeployment", "", &options, &header, order)
    }

    async fn cleanup(&self, elements: Vec<String>, #[zbus(header)] header: Header<'_>) -> Result<String, NamedError> {
        self.core.enter().await;
        let options = Options::new(Given::new())?;
        let arguments = format!("{elements:?}");
        self.begin("Cleanup", &arguments, &options, &header, Order::Cleanup(elements))
    }

    async fn rollback(&self, options: Given, #[zbus(header)] header: Header<'_>) -> Result<String, NamedError> {
        self.core.enter().await;
        let options = Options::new(options)?;
        let order = Order::Rollback {
            reboot: options.flag("reboot", false),
        };
        self.begin("Rollback", "", &options, &header, order)
    }
}
