//! The image of a pool, and the settings for polling its tag.

use std::time::Duration;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::{ImageRef, Written};

/// Default time between two polls of a tag.
pub const DEFAULT_POLL_INTERVAL: Duration = Duration::from_secs(12 * 3600);
/// Shortest time between two polls of a tag.
pub const MIN_POLL_INTERVAL: Duration = Duration::from_secs(60);

/// Schema rules for the image settings of pools and of the fleet.
pub(crate) const POLL_INTERVAL_RULE: &str =
    "self.matches('^(0|[0-9]{1,6}(s|m|h))$') && (self.matches('^0+[smh]?$') || duration(self) >= duration('1m'))";
pub(crate) const POLL_INTERVAL_MESSAGE: &str =
    "pollInterval must be 0, or a duration of at least 1m, such as 15m or 12h";
pub(crate) const PULL_SECRET_RULE: &str = "self.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')";
pub(crate) const PULL_SECRET_MESSAGE: &str = "pullSecret must be the name of a Secret in the controller's namespace";

/// The image of a pool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("has(self.ref)")
        .message("image.ref is missing; write the whole reference, such as quay.io/example/os:stable"),
    validation = Rule::new("!has(self.ref) || (!self.ref.startsWith('-') && self.ref.matches('^[A-Za-z0-9._:/@_-]+$'))")
        .message("image.ref is not an image reference; write one without spaces or options, such as quay.io/example/os:stable"),
    validation = Rule::new("!has(self.ref) || self.ref.matches('^([^/@]*[.:][^/@]*|localhost)/')")
        .message("image.ref names no registry; write the whole reference, such as quay.io/example/os:stable"),
    validation = Rule::new("!has(self.ref) || self.ref.contains('@') || self.ref.matches('/[^/]*:[^/]+$')")
        .message("image.ref has neither a tag nor a digest; add one, such as :stable or @sha256:…"),
    validation = Rule::new("!has(self.ref) || !self.ref.contains('@') || self.ref.matches('@sha256:[0-9a-f]{64}$')")
        .message("the part of image.ref after @ is not a digest; write @sha256: followed by 64 lower-case hex digits"),
    validation = Rule::new("!has(self.ref) || self.ref.matches('^[^/]+(/[a-z0-9]([a-z0-9._-]*[a-z0-9])?)+(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@.*)?$')")
        .message("image.ref has an invalid repository or tag; write repositories in lower case, and tags with letters, digits, '.', '_' and '-'"),
)]
#[serde(rename_all = "camelCase")]
pub struct PoolImage {
    /// Image reference with a tag, a digest, or both, such as `quay.io/example/os:stable`. With only a tag, the pool
    /// follows the tag. With both, the pool uses the digest; the tag's image is only reported in `status.available`. An
    /// image index is resolved to the manifest of each platform.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub reference: Option<Written<ImageRef>>,
    /// Time between two polls of the tag: at least `1m`, or `0`. With `0`, the registry is queried only when the
    /// reference changes or a poll is requested. Default: the fleet's `image.pollInterval`, otherwise 12h. A reference
    /// without a tag is never polled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new(POLL_INTERVAL_RULE).message(POLL_INTERVAL_MESSAGE))]
    pub poll_interval: Option<Written<Duration>>,
    /// How long a tag must point to a new digest before the pool adopts the digest. During this time, a bad push can be
    /// withdrawn. A reference changed by the admin is adopted without this delay. Default 0s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^(0|[0-9]{1,6}(s|m|h))$')")
        .message("minimumAge must be a duration: 0, or a whole number and a unit, such as 30m or 12h"))]
    pub minimum_age: Option<Written<Duration>>,
    /// Name of a Secret of type `kubernetes.io/dockerconfigjson` in the controller's namespace, with the credentials
    /// for the registry. Default: the fleet's `image.pullSecret`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new(PULL_SECRET_RULE).message(PULL_SECRET_MESSAGE))]
    pub pull_secret: Option<String>,
}
