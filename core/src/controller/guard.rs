//! The fleet's guard over the registries that pools may name.

use berth_api::ImageRef;
use berth_api::fleet::BootcFleetSpec;
use berth_api::image_ref::allowed;

use crate::controller::facts::Pool;
use crate::text::few;

impl Pool {
    /// Refuses the pool's reference unless the fleet allows its registry. One that cannot be read is told by whoever
    /// resolves it.
    #[must_use]
    pub fn guarded(mut self, fleet: &BootcFleetSpec) -> Pool {
        let reference = self.object.as_ref().map(|o| o.spec.image_ref()).unwrap_or_default();
        self.refused = match reference.parse::<ImageRef>() {
            Ok(parsed) if !allowed(&fleet.allowed_registries, &parsed) => Some(format!(
                "{reference} begins with none of the BootcFleet's allowedRegistries ({}); what was resolved before stays",
                few(fleet.allowed_registries.iter().cloned())
            )),
            _ => None,
        };
        self
    }
}
