use berth_api::condition::Verdict;
use berth_core::controller::image::{Decision, decide};
use berth_core::controller::view::Urgency;

use super::registry::tests::{Registry, image_of, registry};
use super::*;
use crate::time;

const SOON: Duration = Duration::from_secs(20);

/// A pool's settings, and the parts of its status that the last pass set.
struct Case {
    name: PoolName,
    reference: Written<ImageRef>,
    interval: Option<Duration>,
    minimum_age: Duration,
    secret: Option<String>,
    seen: Duration,
    target: Option<Target>,
    available: Option<Available>,
    request: Option<String>,
    obeyed: Option<String>,
}

fn pool(name: &str, reference: &str) -> Case {
    Case {
        name: name.into(),
        reference: reference.into(),
        interval: Some(Duration::from_secs(3600)),
        minimum_age: Duration::ZERO,
        secret: None,
        seen: Duration::ZERO,
        target: None,
        available: None,
        request: None,
        obeyed: None,
    }
}

impl Case {
    fn pool_image(&self) -> PoolImage<'_> {
        PoolImage {
            pool: &self.name,
            reference: &self.reference,
            interval: self.interval,
            minimum_age: self.minimum_age,
            secret: self.secret.as_deref(),
            target: self.target.as_ref(),
            available: self.available.as_ref(),
            seen: self.seen,
            request: self.request.as_deref(),
            obeyed: self.obeyed.as_deref(),
        }
    }

    fn take(&mut self, resolution: Resolution) -> Verdict {
        let facts = image::ImageFacts {
            reference: &self.reference,
            minimum_age: self.minimum_age,
            target: self.target.as_ref(),
            available: self.available.as_ref(),
            seen: resolution.seen,
            answers: &resolution.answers,
        };
        let Decision {
            target,
            available,
            verdict,
            ..
        } = decide(&facts, |_| None, Timestamp::UNIX_EPOCH);
        (self.target, self.available, self.obeyed) = (target, available, resolution.poll_request);
        verdict
    }

    fn digest(&self) -> Option<String> {
        self.target.as_ref().map(|target| target.digest.to_string())
    }
}

fn resolver(registry: &str) -> Resolver {
    berth_shell::install_crypto();
    let config = RegistryConfig {
        plain_http: vec![registry.to_owned()],
        ..RegistryConfig::default()
    };
    Resolver::new(config, Store::default())
}

/// Runs passes until `is_so` returns true. Returns the condition of the last pool.
async fn until(resolver: &mut Resolver, pools: &mut [Case], is_so: impl Fn(&[Case], &Verdict) -> bool) -> Verdict {
    let deadline = time::now() + SOON;
    loop {
        let now = time::now();
        resolver.collect(now, Timestamp::UNIX_EPOCH);
        let pool_images: Vec<_> = pools.iter().map(Case::pool_image).collect();
        let mut resolutions = resolver.ask(&pool_images, now);
        let mut last = None;
        for pool in pools.iter_mut() {
            last = Some(pool.take(resolutions.remove(&pool.name).unwrap()));
        }
        let last = last.unwrap();
        if is_so(pools, &last) {
            return last;
        }
        assert!(now < deadline, "{last:?}");
        let due = resolver.due().map_or(SOON, |due| due.since(time::now()));
        let _ = tokio::time::timeout(due.min(SOON), resolver.store.news().wait(Urgency::Later)).await;
        resolver.store.news().clear();
    }
}

async fn with_image(tag: &str, version: &str) -> Registry {
    registry(|_| image_of(tag, version)).await
}

#[tokio::test]
async fn an_invalid_reference_is_not_asked_about() {
    let mut resolver = resolver("");
    let mut pools = [pool("a", "nonsense")];
    let verdict = until(&mut resolver, &mut pools, |_, verdict| verdict.status == Some(false)).await;
    assert_eq!(verdict.reason, "InvalidReference");
    assert!(resolver.due().is_none() && resolver.tasks.is_empty());
}

#[tokio::test]
async fn an_unreachable_registry_is_tried_again_later() {
    let mut resolver = resolver("127.0.0.1:1");
    let mut pools = [pool("a", "127.0.0.1:1/os:1")];
    let verdict = until(&mut resolver, &mut pools, |_, verdict| verdict.status == Some(false)).await;
    assert_eq!(verdict.reason, "RegistryUnavailable");
    let words = "since 1970-01-01T00:00:00Z, attempt 1, next try at 1970-";
    assert!(verdict.message.contains(words), "{verdict:?}");
    assert!(resolver.due().is_some());
}

#[tokio::test]
async fn a_target_in_the_status_is_not_fetched() {
    let registry = with_image("1", "1.0").await;
    let mut pools = [pool("a", &format!("{}/os:1", registry.address))];
    let mut first = resolver(&registry.address);
    until(&mut first, &mut pools, |pools, _| pools[0].target.is_some()).await;
    let asked = registry.requests().len();
    for interval in [None, Some(Duration::from_secs(3600))] {
        pools[0].interval = interval;
        let mut next = resolver(&registry.address);
        until(&mut next, &mut pools, |_, verdict| verdict.reason == "Resolved").await;
        assert_eq!(next.due().is_some(), interval.is_some());
    }
    assert_eq!(registry.requests().len(), asked);
}

#[tokio::test]
async fn pools_with_one_tag_share_its_requests() {
    let registry = with_image("1", "1.0").await;
    let reference = format!("{}/os:1", registry.address);
    let mut resolver = resolver(&registry.address);
    let mut pools = [pool("a", &reference), pool("b", &reference)];
    until(&mut resolver, &mut pools, |pools, _| {
        pools.iter().all(|p| p.target.is_some())
    })
    .await;
    let manifest = "/v2/os/manifests/1";
    assert_eq!(registry.count("GET", manifest), 1);
    for pool in &mut pools {
        pool.request = Some("now".into());
    }
    fn obeyed(pools: &[Case], _: &Verdict) -> bool {
        pools.iter().all(|p| p.obeyed.as_deref() == p.request.as_deref())
    }
    until(&mut resolver, &mut pools, obeyed).await;
    assert_eq!(
        (registry.count("HEAD", manifest), registry.count("GET", manifest)),
        (1, 1)
    );
    registry.set(image_of("1", "2.0"));
    let before = pools[0].digest();
    pools[1].request = Some("again".into());
    until(&mut resolver, &mut pools, obeyed).await;
    assert!(pools[0].digest() != before && pools[0].digest() == pools[1].digest());
    assert_eq!(
        (registry.count("HEAD", manifest), registry.count("GET", manifest)),
        (2, 2)
    );
}

#[tokio::test]
async fn an_unpolled_pool_gets_no_answers_of_others() {
    let registry = with_image("1", "1.0").await;
    let reference = format!("{}/os:1", registry.address);
    let mut resolver = resolver(&registry.address);
    let mut pools = [pool("still", &reference), pool("polled", &reference)];
    pools[0].interval = None;
    until(&mut resolver, &mut pools, |pools, _| {
        pools.iter().all(|p| p.target.is_some())
    })
    .await;
    let first = pools[0].digest();
    registry.set(image_of("1", "2.0"));
    pools[1].request = Some("now".into());
    until(&mut resolver, &mut pools, |pools, _| pools[1].digest() != first).await;
    assert_eq!(pools[0].digest(), first);
    pools[0].request = Some("now".into());
    until(&mut resolver, &mut pools, |pools, _| pools[0].digest() != first).await;
    assert_eq!(pools[0].obeyed.as_deref(), Some("now"));
}

#[tokio::test]
async fn a_pinned_pool_reports_its_tag_and_a_lost_digest() {
    let registry = with_image("1", "1.0").await;
    let reference = format!("{}/os:1", registry.address);
    let mut resolver = resolver(&registry.address);
    let mut pools = [pool("a", &reference)];
    until(&mut resolver, &mut pools, |pools, _| pools[0].target.is_some()).await;
    let first = pools[0].digest().unwrap();
    pools[0].reference = format!("{reference}@{first}").into();
    fn is_pinned(pools: &[Case], _: &Verdict) -> bool {
        pools[0].target.as_ref().unwrap().image == pools[0].reference
    }
    until(&mut resolver, &mut pools, is_pinned).await;
    registry.add(image_of("1", "2.0"));
    pools[0].request = Some("now".into());
    let verdict = until(&mut resolver, &mut pools, |pools, _| pools[0].available.is_some()).await;
    assert_eq!(
        (pools[0].digest().unwrap(), &*verdict.reason),
        (first, "ImageAvailable")
    );
    assert_eq!(pools[0].available.as_ref().unwrap().version.as_deref(), Some("2.0"));
    pools[0].reference = format!("{reference}@sha256:{}", "0".repeat(64)).into();
    let verdict = until(&mut resolver, &mut pools, |_, verdict| verdict.status == Some(false)).await;
    assert_eq!(verdict.reason, "DigestUnavailable");
}

#[tokio::test]
async fn a_failing_registry_keeps_the_target() {
    let registry = with_image("1", "1.0").await;
    let mut resolver = resolver(&registry.address);
    let mut pools = [pool("a", &format!("{}/os:1", registry.address))];
    until(&mut resolver, &mut pools, |pools, _| pools[0].target.is_some()).await;
    let first = pools[0].digest();
    registry.set(vec![]);
    pools[0].request = Some("now".into());
    let verdict = until(&mut resolver, &mut pools, |pools, _| pools[0].obeyed.is_some()).await;
    assert_eq!((verdict.status, &*verdict.reason), (Some(true), "ImageNotFound"));
    assert_eq!(pools[0].digest(), first);
}

/// Requests a poll of the first pool, and waits until its digest has changed.
async fn moved(resolver: &mut Resolver, pools: &mut [Case], request: &str) -> Option<String> {
    let before = pools[0].digest();
    pools[0].request = Some(request.to_owned());
    until(resolver, pools, |pools, _| {
        pools[0].digest() != before && pools[0].obeyed.as_deref() == Some(request)
    })
    .await;
    pools[0].digest()
}

#[tokio::test]
async fn a_pool_polled_meanwhile_gets_no_old_answer() {
    let registry = with_image("1", "1.0").await;
    let mut resolver = resolver(&registry.address);
    let reference = format!("{}/os:1", registry.address);
    let mut pools = [pool("polled", &reference), pool("a", &reference)];
    pools[1].interval = None;
    until(&mut resolver, &mut pools, |pools, _| {
        pools.iter().all(|p| p.target.is_some())
    })
    .await;
    let first = pools[1].digest();
    registry.set(image_of("1", "2.0"));
    pools[1].request = Some("now".into());
    until(&mut resolver, &mut pools, |pools, _| pools[1].digest() != first).await;
    pools[1].interval = Some(Duration::from_secs(3600));
    until(&mut resolver, &mut pools, |_, _| true).await;
    registry.set(image_of("1", "3.0"));
    let newest = moved(&mut resolver, &mut pools, "now").await;
    assert_eq!(pools[1].digest(), newest);
    pools[1].interval = None;
    until(&mut resolver, &mut pools, |_, _| true).await;
    assert_eq!(pools[1].digest(), newest);
}

#[tokio::test]
async fn a_new_secret_brings_no_older_answer() {
    let registry = with_image("1", "1.0").await;
    let reference = format!("{}/os:1", registry.address);
    let mut resolver = resolver(&registry.address);
    let mut pools = [pool("a", &reference), pool("b", &reference)];
    pools[1].secret = Some("other".into());
    until(&mut resolver, &mut pools, |pools, _| {
        pools.iter().all(|p| p.target.is_some())
    })
    .await;
    registry.set(image_of("1", "2.0"));
    let newest = moved(&mut resolver, &mut pools, "first").await;
    assert_ne!(pools[1].digest(), newest);
    pools[0].secret = Some("other".into());
    until(&mut resolver, &mut pools, |_, _| true).await;
    assert_eq!(pools[0].digest(), newest);
    registry.set(image_of("1", "3.0"));
    let newest = moved(&mut resolver, &mut pools, "second").await;
    assert_eq!(pools[1].digest(), newest, "both ask the same now");
}

/// Returns a pool that runs 1.0, is not polled, and adopts only images that are an hour old.
async fn patient_pool(registry: &Registry) -> (Resolver, [Case; 1]) {
    let mut resolver = resolver(&registry.address);
    let mut pools = [pool("a", &format!("{}/os:1", registry.address))];
    pools[0].interval = None;
    pools[0].minimum_age = Duration::from_secs(3600);
    until(&mut resolver, &mut pools, |pools, _| pools[0].target.is_some()).await;
    (resolver, pools)
}

#[tokio::test]
async fn a_digest_that_returns_is_confirmed_again() {
    let registry = with_image("1", "1.0").await;
    let (mut resolver, mut pools) = patient_pool(&registry).await;
    for round in ["1", "2"] {
        registry.set(image_of("1", "2.0"));
        pools[0].request = Some(format!("push {round}"));
        until(&mut resolver, &mut pools, |pools, _| pools[0].available.is_some()).await;
        let asked = registry.count("HEAD", "/v2/os/manifests/1");
        pools[0].seen = pools[0].minimum_age;
        until(&mut resolver, &mut pools, |_, _| {
            registry.count("HEAD", "/v2/os/manifests/1") > asked
        })
        .await;
        registry.set(image_of("1", "1.0"));
        pools[0].seen = Duration::ZERO;
        pools[0].request = Some(format!("back {round}"));
        until(&mut resolver, &mut pools, |pools, _| pools[0].available.is_none()).await;
    }
}

/// A target may lack metadata: older controllers stored none, and fetching the metadata may have failed.
#[tokio::test]
async fn a_target_without_metadata_is_fetched_again() {
    let registry = registry(|_| image_of("1", "1.0")).await;
    let mut resolver = resolver(&registry.address);
    let mut pools = [pool("a", &format!("{}/os:1", registry.address))];
    until(&mut resolver, &mut pools, |pools, _| pools[0].target.is_some()).await;
    let whole = pools[0].target.clone();
    fn bare(target: &Option<Target>) -> Option<Target> {
        target.clone().map(|t| Target {
            metadata: None,
            version: None,
            ..t
        })
    }
    assert_ne!(bare(&whole), whole);
    pools[0].target = bare(&whole);
    let before = registry.count("GET", "/v2/os/manifests/1");
    let mut next = self::resolver(&registry.address);
    // For the second request, the target has metadata, so that a HEAD request is enough.
    for request in ["1", "2"] {
        pools[0].request = Some(request.to_owned());
        until(&mut next, &mut pools, |pools, _| pools[0].obeyed == pools[0].request).await;
        assert_eq!(pools[0].target, whole);
        let fetched = registry.count("GET", "/v2/os/manifests/1");
        assert_eq!(fetched, before + 1, "request {request}");
    }
}

/// While a pool is refused, the controller sends no request for the pool to a registry. The pool's poll requests count
/// as handled. When the pool is allowed again, its tag is polled within five minutes, as after a change of the leader.
#[tokio::test]
async fn a_pool_allowed_again_is_polled_soon() {
    let registry = with_image("1", "1.0").await;
    let mut resolver = resolver(&registry.address);
    let mut pools = [pool("a", &format!("{}/os:1", registry.address))];
    until(&mut resolver, &mut pools, |pools, _| pools[0].target.is_some()).await;
    let now = time::now();
    resolver.ask(&[], now);
    assert_eq!(resolver.due(), None);
    (pools[0].request, pools[0].obeyed) = (Some("1".to_owned()), Some("1".to_owned()));
    resolver.ask(&[pools[0].pool_image()], now);
    assert!(resolver.due().unwrap().since(now) <= Duration::from_secs(300));
}

#[test]
fn without_the_fleet_no_pool_is_asked_for() {
    assert!(Resolution::unasked().answers.fleet_unreadable);
}

#[test]
fn a_value_is_wanted_since_its_first_pass() {
    let (pool, at) = (PoolName::from("a"), |seconds| {
        Moment::after(Duration::from_secs(seconds))
    });
    let mut since = WantedSince::default();
    assert_eq!(since.wanted(&pool, "1"), None);
    assert_eq!(since.wants(&pool, "1", at(5)), at(5));
    assert_eq!(since.wants(&pool, "1", at(6)), at(5));
    assert_eq!(
        (since.wanted(&pool, "1"), since.wanted(&pool, "2")),
        (Some(at(5)), None)
    );
    assert_eq!(
        since.wants(&pool, "2", at(7)),
        at(7),
        "another value counts from its own time"
    );
}

#[tokio::test]
async fn a_request_ends_with_its_resolver() {
    let endless = tokio::spawn(std::future::pending::<()>());
    drop(Task(endless.abort_handle()));
    assert!(endless.await.unwrap_err().is_cancelled());
}

/// Runs passes until an answer has arrived. Returns its result.
async fn result(resolver: &mut Resolver, pool: &mut Case) -> &'static str {
    let deadline = time::now() + SOON;
    loop {
        let now = time::now();
        let results = resolver.collect(now, Timestamp::UNIX_EPOCH);
        let resolution = resolver.ask(&[pool.pool_image()], now).remove(&pool.name).unwrap();
        pool.take(resolution);
        if let Some(result) = results.first() {
            return result;
        }
        assert!(now < deadline, "no answer");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn results_are_counted_by_whether_the_image_changed() {
    let registry = with_image("1", "1.0").await;
    let mut resolver = resolver(&registry.address);
    let mut pool = pool("a", &format!("{}/os:1", registry.address));
    assert_eq!(result(&mut resolver, &mut pool).await, "Changed");
    pool.request = Some("1".to_owned());
    assert_eq!(result(&mut resolver, &mut pool).await, "Unchanged");
    registry.set(image_of("1", "2.0"));
    pool.request = Some("2".to_owned());
    assert_eq!(result(&mut resolver, &mut pool).await, "Changed");
}

#[tokio::test]
async fn a_handled_request_is_not_asked_again() {
    let registry = with_image("1", "1.0").await;
    let mut resolver = resolver(&registry.address);
    let reference = format!("{}/os:1", registry.address);
    let mut pools = [pool("still", &reference), pool("polled", &reference)];
    until(&mut resolver, &mut pools, |pools, _| {
        pools.iter().all(|p| p.target.is_some())
    })
    .await;
    let mut next = self::resolver(&registry.address);
    pools[0].interval = None;
    (pools[0].request, pools[0].obeyed) = (Some("1".to_owned()), Some("1".to_owned()));
    registry.set(vec![]);
    pools[1].request = Some("1".to_owned());
    until(&mut next, &mut pools, |pools, _| pools[1].obeyed.is_some()).await;
    let mut resolutions = next.ask(&pools.each_ref().map(Case::pool_image), time::now());
    let [still, polled] = pools.map(|pool| resolutions.remove(&pool.name).unwrap());
    assert!(polled.answers.tag.trouble.is_some());
    assert!(still.answers.tag.trouble.is_none());
}

#[tokio::test]
async fn a_digest_is_confirmed_by_one_request() {
    let registry = with_image("1", "1.0").await;
    let (mut resolver, mut pools) = patient_pool(&registry).await;
    registry.set(image_of("1", "2.0"));
    pools[0].request = Some("1".to_owned());
    until(&mut resolver, &mut pools, |pools, _| pools[0].available.is_some()).await;
    let manifest = "/v2/os/manifests/1";
    let asked = registry.count("HEAD", manifest);
    pools[0].seen = pools[0].minimum_age;
    until(&mut resolver, &mut pools, |_, _| {
        registry.count("HEAD", manifest) > asked
    })
    .await;
    // A second request for the same image would be sent within this time.
    for _ in 0..25 {
        until(&mut resolver, &mut pools, |_, _| true).await;
        tokio::time::sleep(polls::MIN_SPACING / 10).await;
    }
    assert_eq!(registry.count("HEAD", manifest), asked + 1);
}

#[tokio::test]
async fn the_status_stays_until_an_answer() {
    let mut resolver = resolver("");
    for (reference, interval) in [("nonsense", None), ("r.example/os:1", Some(Duration::from_secs(60)))] {
        let mut pool = pool("a", reference);
        (pool.interval, pool.seen) = (interval, Duration::from_secs(7));
        pool.obeyed = Some("1".to_owned());
        let resolution = resolver
            .ask(&[pool.pool_image()], time::now())
            .remove(&pool.name)
            .unwrap();
        assert_eq!(resolution.seen, pool.seen);
        assert_eq!(resolution.poll_request, pool.obeyed);
        assert_eq!(resolution.polled, interval.is_some());
    }
}

fn image_in(repository: &str) -> Target {
    Target {
        image: format!("{repository}:0").into(),
        digest: format!("sha256:{}", "0".repeat(64)).parse().unwrap(),
        version: None,
        metadata: None,
        platforms: vec![],
        publish_time: None,
    }
}

#[test]
fn each_question_is_asked_in_its_own_way() {
    let moment = Moment::after(Duration::from_secs(5));
    let mut case = pool("a", "r.example/os:1");
    let mut asked = PoolQuestions {
        questions: Some(Questions::of(&"r.example/os:1".parse().unwrap())),
        changed: Some(moment),
        requested: None,
        confirmed: None,
    };
    let [(_, named), (_, polled)] = asked.asks(&case.pool_image()).try_into().unwrap();
    assert_eq!(
        (named.after, named.urgent, named.until_answered),
        (Some(moment), true, true)
    );
    assert_eq!(
        (polled.interval, polled.after, polled.urgent),
        (case.interval, None, false)
    );
    // An image of the same repository need not be fetched again.
    asked.changed = None;
    for (repository, count) in [("r.example/os", 1), ("r.example/other", 0), ("other.example/os", 0)] {
        case.target = Some(image_in(repository));
        let [(_, polled)] = asked.asks(&case.pool_image()).try_into().unwrap();
        assert_eq!(polled.known.len(), count, "{repository}");
    }
    (asked.requested, case.request) = (Some(moment), Some("1".to_owned()));
    let [_, (_, requested)] = asked.asks(&case.pool_image()).try_into().unwrap();
    assert_eq!(
        (requested.after, requested.by_admin, requested.gather),
        (Some(moment), true, GATHER_TIME)
    );
    case.obeyed.clone_from(&case.request);
    assert_eq!(asked.asks(&case.pool_image()).len(), 1, "a handled request is over");
    (asked.requested, asked.confirmed) = (None, Some(moment));
    let [_, (_, confirmed)] = asked.asks(&case.pool_image()).try_into().unwrap();
    assert_eq!((confirmed.after, confirmed.until_answered), (Some(moment), true));
}

#[tokio::test]
async fn a_secret_that_cannot_be_read_is_named() {
    for (code, reason, is_forbidden) in [
        (403, ResolveReason::PullSecretUnreadable, true),
        (500, ResolveReason::PullSecretUnreadable, false),
        (404, ResolveReason::PullSecretNotFound, false),
    ] {
        let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            let word = if code == 404 { "NotFound" } else { "Other" };
            let status = serde_json::json!({"kind": "Status", "status": "Failure", "reason": word, "code": code});
            let body = kube::client::Body::from(status.to_string().into_bytes());
            let answer = http::Response::builder().status(code).body(body).unwrap();
            std::future::ready(Ok::<_, std::convert::Infallible>(answer))
        });
        let config = RegistryConfig {
            secrets: Some(PullSecrets::new(kube::Client::new(service, "ns"), "berth-system")),
            ..RegistryConfig::default()
        };
        let question = Question {
            image: "r.example/os:1".parse().unwrap(),
            secret: Some("pull".to_owned()),
        };
        let error = resolve(&config, &question, &[]).await.unwrap_err();
        assert_eq!(error.reason, reason);
        assert!(error.message.contains("Secret berth-system/pull"), "{error}");
        let says_how = error
            .message
            .contains("allow get of this Secret in the Role berth-controller");
        assert_eq!(says_how, is_forbidden, "{error}");
    }
}
