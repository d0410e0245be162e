//! Images that a node has reported as booted, by boot ID. A boot runs one image from its start to its end.

use std::time::Duration;

use berth_api::{BootId, Digest};

use super::lasting::Look;
use crate::Moment;
use crate::controller::view::Report;

/// Booted images of a node, as reported.
#[derive(Debug, Default)]
pub(super) struct BootedImages {
    /// Boot and image that the agent has reported for long enough. The image is `None` if an earlier leader has found a
    /// contradiction under this boot ID.
    settled: Option<(BootId, Option<Digest>)>,
    /// Boot and image in the last report, and since when this process has seen them.
    last: Option<(BootId, Digest, Moment)>,
}

impl BootedImages {
    /// Returns the memory of a node whose contradiction an earlier leader has found.
    pub(super) fn contradicted(report: &Report) -> Self {
        Self {
            settled: report.host.boot_id.clone().map(|boot| (boot, None)),
            last: None,
        }
    }

    /// Compares the reported image with the image that was reported before under the same boot ID. `is_settled`: true
    /// if the report is current. Early in a boot, and while the host cannot be read, an agent repeats the image of its
    /// last report. So a boot's image counts only if the agent has reported it for the time `silence` without a problem.
    /// `times`: last write of the agent, and current time.
    pub(super) fn look(
        &mut self,
        report: &Report,
        is_settled: bool,
        times: (Moment, Moment),
        silence: Duration,
    ) -> Look {
        let (Some(boot), Some(booted)) = (&report.host.boot_id, &report.images.booted) else {
            return Look::Unsettled;
        };
        let (heard, now) = times;
        let counts = is_settled && report.degraded.is_none();
        let last = self.last.as_ref();
        let since = last.filter(|(last, image, _)| counts && last == boot && image == booted);
        let since = since.map(|(.., since)| *since);
        if since.is_none() {
            self.last = Some((boot.clone(), booted.clone(), now));
        }
        match &self.settled {
            Some((settled, image)) if settled == boot => Look::of(image.as_ref() != Some(booted)).unless(!is_settled),
            _ => {
                if since.is_some_and(|since| heard.since(since) >= silence) {
                    self.settled = Some((boot.clone(), Some(booted.clone())));
                }
                Look::Agrees
            }
        }
    }
}
