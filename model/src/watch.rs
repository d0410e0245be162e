//! Converts the controller's view to real types: Nodes, BootcNodes, pools and berths. Most objects do not change, so
//! converted nodes are cached.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use berth_api::boot_image::{
    BootImageEnforcement, BootImageLimit, BootImagePolicy, BootImageSource, BootImageStatus, ManualBootImage,
};
use berth_api::fleet::{self, BootcFleet, BootcFleetSpec};
use berth_api::keys;
use berth_api::node::{BootcNodeSpec, DesiredImage, Staging};
use berth_api::platform::Machine;
use berth_api::pool::{
    Available, BerthCounts, BootcNodePool, BootcNodePoolSpec, BootcNodePoolStatus, DigestFailures, ImageMetadata,
    PlatformDigest, PoolImage, Rollout, Target, Wave, WaveState, WaveStatus, Window,
};
use berth_api::quantity::Quantity;
use berth_api::written::{Parse, Written};
use berth_core::Moment;
use berth_core::controller::image::{self, Ages, Found};
use berth_core::controller::snapshot::{Entry, Snapshot};
use berth_core::controller::soaks::Soaks;
use berth_core::controller::view::{
    BadTurn, BootImageNote, BootcNodeContent, BootcNodeView, FleetView, Host, Images, KubeletReport, LeaseView,
    NodeView, PoolView, Pull, Report,
};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease as Object;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, Time};

use crate::controller_view::{ControllerView, SeenNode};
use crate::hash::Fast;
use crate::rich;
use crate::state::{
    Answer, Begun, Berth, BootImage, BootImages, Controller, Cordon, Image, Lease, NONE, Number, Pool, Spec, Status,
    Work,
};
use crate::world::{Follows, World};

/// Node label in the pools' selectors.
const POOL: &str = "pool";
/// Node label of the first wave, and name of that wave.
const CANARY: &str = "canary";
const ZONE: &str = "topology.kubernetes.io/zone";
const ARCHITECTURE: &str = "amd64";
/// Boot image version of every machine except the newest.
const BOOT_IMAGE: &str = "8.6";
/// Minimum boot image version of the images in [`World::too_old`].
const NEW_ENOUGH: &str = "9.0";

#[derive(Debug, Default)]
pub struct ObjectCache {
    nodes: HashMap<(Number, SeenNode), Arc<NodeView>, Fast>,
    hosts: HashMap<(Number, Spec, Status), Arc<BootcNodeView>, Fast>,
}

impl ObjectCache {
    /// Returns the objects as the watches show them.
    pub fn snapshot(&mut self, world: &World, view: &ControllerView) -> Snapshot {
        let mut snapshot = Snapshot::default();
        let mut nodes = BTreeMap::new();
        let mut hosts = BTreeMap::new();
        for (number, seen) in (0..).zip(&view.nodes) {
            let name = rich::name(number);
            if seen.object.exists {
                nodes.insert(name.to_string(), Entry::new(self.node(number, seen)));
            }
            if let Some(spec) = seen.spec {
                hosts.insert(name.to_string(), Entry::new(self.host(number, spec, seen.status)));
            }
        }
        let mut pools = BTreeMap::new();
        for (number, pool) in (0..).zip(&view.pools) {
            let name = rich::pool(number);
            let object = Ok(object(world, number, pool));
            pools.insert(name.to_string(), Entry::new(PoolView { object, name }));
        }
        if world.fleet != 0 {
            snapshot.fleet = Some(Entry::new(fleet(world, view.fleet.paused)));
        }
        snapshot.pools = Arc::new(pools);
        snapshot.nodes = Arc::new(nodes);
        snapshot.bootc_nodes = Arc::new(hosts);
        snapshot
    }

    fn node(&mut self, number: Number, seen: &SeenNode) -> Arc<NodeView> {
        // Fields of the BootcNode do not affect the Node.
        let key = SeenNode {
            spec: None,
            status: Status::default(),
            ..*seen
        };
        let known = self.nodes.entry((number, key));
        known.or_insert_with(|| Arc::new(node(number, seen))).clone()
    }

    fn host(&mut self, number: Number, spec: Spec, status: Status) -> Arc<BootcNodeView> {
        let known = self.hosts.entry((number, spec, status));
        known.or_insert_with(|| Arc::new(host(number, spec, status))).clone()
    }

    pub fn rest(&mut self, most: usize) {
        if self.nodes.len() > most {
            self.nodes.clear();
        }
        if self.hosts.len() > most {
            self.hosts.clear();
        }
    }
}

fn fleet(world: &World, paused: bool) -> FleetView {
    let max_unavailable = Some(Quantity::Nodes(world.fleet.into()));
    let spec = BootcFleetSpec {
        paused,
        max_unavailable,
        ..BootcFleetSpec::default()
    };
    FleetView {
        object: Ok(BootcFleet::new(fleet::NAME, spec)),
    }
}

fn node(number: Number, seen: &SeenNode) -> NodeView {
    let (of, pool) = (&seen.labels, rich::pool(seen.labels.pool).to_string());
    let labels = [
        (of.pool != NONE, POOL, pool),
        (of.held, keys::LABEL_HOLD, String::new()),
        (seen.object.excluded, keys::LABEL_EXCLUDE, String::new()),
        (of.canary, CANARY, String::new()),
        (of.zone != 0, ZONE, of.zone.to_string()),
        (
            of.server && !of.unlabelled,
            keys::LABELS_CONTROL_PLANE[0],
            String::new(),
        ),
    ];
    let labels = labels.into_iter().filter(|(has, ..)| *has);
    NodeView {
        name: rich::name(number),
        uid: rich::uid(number, seen.object.uid),
        labels: labels.map(|(_, key, value)| (key.to_owned(), value)).collect(),
        ready: seen.object.ready,
        unschedulable: seen.object.unschedulable,
        our_cordon: seen.object.cordon != Cordon::No,
        created: seen.labels.newer.into(),
        machine: Machine {
            architecture: ARCHITECTURE.to_owned(),
            ..Machine::default()
        },
        addresses: seen
            .labels
            .server
            .then(|| address(number).to_string())
            .into_iter()
            .collect(),
        kubelet: KubeletReport::default(),
        error: None,
    }
}

pub fn address(number: Number) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    IpAddr::from([10, 0, high, low])
}

fn reference(image: Image) -> String {
    format!("registry.example/os:{image}")
}

fn host(number: Number, spec: Spec, status: Status) -> BootcNodeView {
    let pool = (spec.pool != NONE).then(|| rich::pool(spec.pool).to_string());
    let content = BootcNodeContent {
        spec: BootcNodeSpec {
            pool_name: pool.clone().unwrap_or_default(),
            node_uid: rich::uid(number, spec.uid).to_string(),
            image: (spec.image != 0).then(|| DesiredImage {
                reference: format!("registry.example/os@{}", rich::digest(spec.image)).into(),
                digest: rich::digest(spec.image),
                index_digest: rich::digest(spec.image),
                version: None,
                signature: berth_api::pool::SignatureRule::AsBooted,
            }),
            staging: if spec.may_pull { Staging::Allowed } else { Staging::Held },
            retry_token: (spec.token != 0).then(|| spec.token.to_string()),
            reboot_timeout: "900s".into(),
            progress_interval: "5s".into(),
            ..BootcNodeSpec::default()
        },
        report: report(number, spec, status),
        status_error: None,
        heartbeat: None,
        told: vec![],
    };
    BootcNodeView {
        uid: format!("{number}"),
        generation: Some(2),
        deleting: spec.deleting,
        finalizers: vec![keys::FINALIZER_NODE.to_owned()],
        owner: Some(rich::uid(number, spec.uid).to_string()),
        pool_label: pool,
        content: Ok(content),
    }
}

fn report(number: Number, _: Spec, status: Status) -> Report {
    Report {
        observed_generation: Some(if status.observed { 2 } else { 1 }),
        node_uid: Some(rich::uid(number, status.uid).to_string()),
        released: status.released,
        images: Images {
            booted: rich::some_digest(status.booted),
            staged: rich::some_digest(status.staged),
            locked: status.staged != 0,
            failed: (1..8)
                .filter(|i| status.failed & (1 << i) != 0)
                .map(rich::digest)
                .collect(),
            ..Images::default()
        },
        pull: Pull {
            pulling: status.work == Work::Pulls,
            blocked: status.work == Work::Blocked,
            prepared: status.prepared,
            ..Pull::default()
        },
        last_turn: (status.turn != 0).then(|| BadTurn {
            outcome: String::new(),
            message: String::new(),
            digest: rich::digest(status.turn),
            attempts: 1,
        }),
        retry_token: (status.token != 0).then(|| status.token.to_string()),
        host: Host {
            boot_image: BootImageNote {
                version: version(status.boot_image),
                ..BootImageNote::default()
            },
            clock_synchronized: true,
            ..Host::default()
        },
        ..Report::default()
    }
}

fn with<T: Parse<Raw = LabelSelector>>(key: &str, value: String) -> Option<Written<T>> {
    Some(Written::new(LabelSelector {
        match_labels: Some([(key.to_owned(), value)].into()),
        match_expressions: None,
    }))
}

fn object(world: &World, number: u8, pool: &Pool) -> BootcNodePool {
    let name = rich::pool(number);
    let token = (pool.token != 0).then(|| pool.token.to_string());
    let window = world.windows.then(|| Window {
        schedule: "0 0 * * *".to_owned(),
        duration: "12h".into(),
        ..Window::default()
    });
    let canary = world.waves.then(|| Wave {
        name: CANARY.to_owned(),
        node_selector: with(CANARY, String::new()),
        soak_time: world.soaks.then(|| SOAK.into()),
        ..Wave::default()
    });
    let rollout = Rollout {
        paused: pool.paused,
        max_unavailable: Some(Quantity::Nodes(pool.capacity.into())),
        max_staging: Some(match world.max_staging {
            0 => Quantity::Percent(100),
            most => Quantity::Nodes(most.into()),
        }),
        waves: canary.into_iter().collect(),
        after: world
            .goes_after(number)
            .map(|earlier| rich::pool(earlier).to_string())
            .collect(),
        windows: window.into_iter().collect(),
        max_failures: u32::try_from(world.max_failures).ok(),
        retry_token: token.clone(),
        ..Rollout::default()
    };
    let spec = BootcNodePoolSpec {
        node_selector: with(POOL, name.to_string()),
        image: Some(PoolImage {
            reference: Some(asked(world, pool.target).into()),
            minimum_age: (world.follows == Follows::Tag).then(|| "60s".into()),
            ..PoolImage::default()
        }),
        rollout: Some(rollout),
        rival_updaters: None,
        tolerated_updaters: vec![],
        host: None,
        drain: None,
        health: None,
        boot_image: policy(pool.boot_images),
        history_limit: None,
    };
    let mut object = BootcNodePool::new(name.as_str(), spec);
    object.status = Some(status(world, pool, token));
    object
}

fn policy(rule: BootImages) -> Option<BootImagePolicy> {
    let mut policy = BootImagePolicy::UNSET;
    match rule {
        BootImages::Refuse => return None,
        BootImages::Warn => policy.enforcement = Some(BootImageEnforcement::Warn),
        BootImages::Disabled => policy.enforcement = Some(BootImageEnforcement::Disabled),
        BootImages::Recorded => {
            let version = NEW_ENOUGH.to_owned();
            policy.source = Some(BootImageSource::Manual);
            policy.manual = Some(ManualBootImage { version });
        }
    }
    Some(policy)
}

/// Returns the image reference in the pools' spec: a tag, if the world has one.
fn asked(world: &World, image: Image) -> String {
    match world.follows {
        Follows::Pinned => format!("registry.example/os:stable@{}", rich::digest(image)),
        Follows::AtOnce if !world.has_tag() => reference(image),
        Follows::AtOnce | Follows::Tag => "registry.example/os:stable".to_owned(),
    }
}

pub fn resolved(world: &World, image: Image) -> Target {
    let too_old = world.too_old & (1 << image) != 0;
    let limit = too_old.then(|| BootImageLimit {
        minimum_version: Some(NEW_ENOUGH.to_owned()),
        ..BootImageLimit::default()
    });
    Target {
        image: asked(world, image).into(),
        digest: rich::digest(image),
        version: (world.too_old != 0).then(|| format!("9.{image}")),
        metadata: (world.too_old != 0).then(|| ImageMetadata {
            boot_image: limit,
            ..ImageMetadata::default()
        }),
        platforms: vec![PlatformDigest {
            architecture: ARCHITECTURE.to_owned(),
            variant: None,
            digest: rich::digest(image),
        }],
        publish_time: None,
    }
}

fn status(world: &World, pool: &Pool, token: Option<String>) -> BootcNodePoolStatus {
    let failures = (0..).zip(&pool.failures).filter(|(_, nodes)| !nodes.is_empty());
    BootcNodePoolStatus {
        target: Some(resolved(world, pool.target)),
        berths: BerthCounts {
            total: pool.published.into(),
            ..BerthCounts::default()
        },
        failures: failures
            .map(|(image, nodes)| DigestFailures {
                digest: rich::digest(image),
                nodes: nodes.iter().map(|n| rich::name(n).to_string()).collect(),
                count: u32::try_from(nodes.len()).unwrap_or(u32::MAX),
            })
            .collect(),
        retry_token: token,
        available: (pool.available != 0).then(|| Available {
            digest: rich::digest(pool.available),
            version: None,
            since: Time::from(rich::NOW),
            seen_seconds: if pool.known_long { MINIMUM_AGE.as_secs() } else { 0 },
        }),
        waves: if world.soaks {
            vec![canaries(pool.soaked)]
        } else {
            vec![]
        },
        boot_image: version(pool.boot_image).map(|version| BootImageStatus {
            version: Some(version),
            node: Some(rich::name(0).to_string()),
            node_created_time: Timestamp::from_second((pool.boot_image == BootImage::Newer).into())
                .ok()
                .map(Time),
            ..BootImageStatus::default()
        }),
        ..BootcNodePoolStatus::default()
    }
}

const SOAK: Duration = Duration::from_secs(60);

fn canaries(soaked: bool) -> WaveStatus {
    WaveStatus {
        name: CANARY.to_owned(),
        total: 1,
        updated: 1,
        state: WaveState::Soaking,
        soaked_seconds: if soaked { SOAK.as_secs() } else { 0 },
    }
}

/// Returns a leader's memory of soaks, and the current moment.
pub fn soaks((image, since): (Image, Begun)) -> (Soaks, Moment) {
    let mut soaks = Soaks::default();
    let began = Moment::default();
    let now = match since {
        Begun::No => return (soaks, began),
        Begun::Lately => began,
        Begun::LongAgo => began + SOAK,
    };
    for moment in [began, now] {
        soaks.see(&rich::pool(0), &rich::digest(image), &[canaries(false)], moment);
    }
    (soaks, now)
}

/// Returns true if the plan's waves show that the canaries have soaked. Also returns how long the leader has seen them
/// soak after this plan.
pub fn soaked(soak: (Image, Begun), waves: &[WaveStatus], target: Image) -> (bool, Begun) {
    let (mut soaks, now) = soaks(soak);
    let mut since = Begun::No;
    for (moment, begun) in [(now, Begun::LongAgo), (now + SOAK, Begun::Lately)] {
        soaks.see(&rich::pool(0), &rich::digest(target), waves, moment);
        let have_soaked = soaks.soaked(&rich::pool(0), &rich::digest(target), CANARY) >= SOAK;
        if since == Begun::No && have_soaked {
            since = begun;
        }
    }
    let mut canaries = waves.iter().filter(|wave| wave.name == CANARY);
    (canaries.any(|wave| wave.soaked_seconds >= SOAK.as_secs()), since)
}

fn version(boot_image: BootImage) -> Option<String> {
    let version = match boot_image {
        BootImage::Unknown => return None,
        BootImage::Older => BOOT_IMAGE,
        BootImage::Newer => NEW_ENOUGH,
    };
    Some(version.to_owned())
}

/// Returns the boot image that the pool's status remembers from a machine. Unknown if the admin recorded the version.
pub fn small_boot_image(status: Option<&BootImageStatus>) -> BootImage {
    let remembered = status.filter(|status| status.node.is_some());
    match remembered.and_then(|status| status.version.as_deref()) {
        Some(BOOT_IMAGE) => BootImage::Older,
        Some(NEW_ENOUGH) => BootImage::Newer,
        _ => BootImage::Unknown,
    }
}

/// How long a pool waits before it adopts a tag's new image.
const MINIMUM_AGE: Duration = Duration::from_secs(60);

/// Returns the registry's answers to a pool's queries.
pub fn answers(world: &World, answer: Option<Answer>) -> image::Answers {
    let found = answer.map(|answer| Found {
        image: resolved(world, answer.image),
        // An answer from before the end of the minimum age counts as old: as if the leader had asked when it first
        // saw the image.
        age: if answer.late || world.follows == Follows::AtOnce {
            Duration::ZERO
        } else {
            MINIMUM_AGE
        },
    });
    let answer = image::Answer { found, trouble: None };
    image::Answers {
        named: answer.clone(),
        tag: answer,
        ..image::Answers::default()
    }
}

pub fn image_facts<'a>(
    object: &'a BootcNodePool,
    answers: &'a image::Answers,
    seen: Duration,
) -> image::ImageFacts<'a> {
    let status = object.status.as_ref();
    image::ImageFacts {
        reference: object.spec.image_ref(),
        minimum_age: object.spec.minimum_age(),
        target: status.and_then(|status| status.target.as_ref()),
        available: status.and_then(|status| status.available.as_ref()),
        seen,
        answers,
    }
}

/// Returns how long the leaders have known the available image, as counted by this leader.
pub fn seen(available: Option<&Available>, (counts, counted): (Image, bool)) -> Duration {
    let (mut ages, pool) = (Ages::default(), rich::pool(0));
    if counts != 0 {
        let first = Available {
            digest: rich::digest(counts),
            version: None,
            since: Time::from(rich::NOW),
            seen_seconds: if counted { MINIMUM_AGE.as_secs() } else { 0 },
        };
        ages.see(&pool, Some(&first), Moment::default());
    }
    ages.see(&pool, available, Moment::default())
}

pub fn wants_confirmation(world: &World, pool: &Pool, controller: &Controller) -> bool {
    let object = object(world, 0, pool);
    let answers = answers(world, controller.answer);
    let available = object.status.as_ref().and_then(|status| status.available.as_ref());
    let facts = image_facts(
        &object,
        &answers,
        seen(available, (controller.counts, controller.counted)),
    );
    let reference = object.spec.image_ref().get();
    reference.is_ok_and(|reference| facts.wants_confirmation(&image::Questions::of(reference)))
}

/// Returns this BootcNode with a permit to pull that its node does not use.
pub fn permitted(host: &BootcNodeView) -> BootcNodeView {
    let mut host = host.clone();
    if let Ok(content) = &mut host.content {
        content.spec.staging = Staging::Allowed;
        content.report.phase = None;
        content.report.pull.pulling = false;
    }
    host
}

/// Returns a berth's Lease, as a list of Leases shows it.
pub fn lease(world: &World, slot: usize, is: Berth, stamped: bool) -> Option<LeaseView> {
    let epoch = if stamped { rich::OWN_EPOCH } else { rich::OTHER_EPOCH };
    let berth = rich::berth(world.place(slot), &Lease { epoch: 0, is }, epoch)?;
    let metadata = ObjectMeta {
        name: Some(name(world, slot)),
        ..ObjectMeta::default()
    };
    Some(LeaseView {
        lease: Object { metadata, spec: None },
        pool: berth.pool.clone(),
        berth: Ok(berth),
    })
}

pub fn name(world: &World, slot: usize) -> String {
    let (pool, index) = world.place(slot);
    format!("{}-{index}", rich::pool(pool))
}

pub fn small_spec(spec: &BootcNodeSpec, deleting: bool) -> Spec {
    let is_member = !spec.pool_name.is_empty();
    Spec {
        pool: if is_member {
            rich::pool_number(&spec.pool_name.as_str().into())
        } else {
            NONE
        },
        uid: rich::generation(&spec.node_uid.as_str().into()),
        image: rich::image(spec.image.as_ref().map(|i| &i.digest)),
        may_pull: is_member && spec.staging == Staging::Allowed,
        token: spec.retry_token.as_ref().and_then(|t| t.parse().ok()).unwrap_or(0),
        deleting,
    }
}
