use std::convert::Infallible;

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::json;

use super::*;

pub(crate) const QUICK: Timing = Timing {
    duration: Duration::from_millis(2400),
    renew_deadline: Duration::from_millis(1600),
    retry_period: Duration::from_millis(100),
};

/// A simulated API server that has only the leader's Lease. It counts the PUTs that it stores from 1, and never answers
/// the PUTs with the numbers in `unanswered`.
pub(crate) fn server(unanswered: &'static [usize]) -> Client {
    let kept = Arc::new(Mutex::new((0usize, Lease::default())));
    let service = tower::service_fn(move |request: Request<Body>| {
        let kept = kept.clone();
        async move {
            let put = request.method() == Method::PUT;
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let (status, answer, silent) = {
                let mut kept = kept.lock().unwrap();
                let version = kept.1.metadata.resource_version.clone();
                let sent: Lease = serde_json::from_slice(&body).unwrap_or_default();
                let current = version.is_none() || sent.metadata.resource_version == version;
                if put && current {
                    kept.0 += 1;
                    kept.1 = sent;
                    kept.1.metadata.resource_version = Some(kept.0.to_string());
                }
                if put && !current {
                    let conflict = json!({ "kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409 });
                    (409, conflict, false)
                } else {
                    (200, json!(kept.1), put && unanswered.contains(&kept.0))
                }
            };
            if silent {
                std::future::pending::<()>().await;
            }
            let body = Body::from(answer.to_string().into_bytes());
            let response = Response::builder().status(status).body(body).unwrap();
            Ok::<_, Infallible>(response)
        }
    });
    Client::new(service, "ns")
}

pub(crate) fn leader(client: Client, timing: Timing) -> (Candidate, Leadership, Lease) {
    let candidate = Candidate::new(client, "ns", "me".to_owned(), timing, Pulse::default());
    let lease = candidate.lease(None, 3);
    let leadership = Leadership::new(3, timing, Instant::now(), candidate.pulse.clone());
    (candidate, leadership, lease)
}

#[tokio::test]
async fn a_leader_that_hangs_loses_leadership() {
    let (candidate, mut leadership, lease) = leader(server(&[]), QUICK);
    leadership.pulse = Pulse::hanging();
    let lost = tokio::time::timeout(QUICK.renew_deadline, candidate.keep(&leadership, lease)).await;
    assert_eq!(lost.unwrap(), Lost("the controller's reconcile loop hangs".to_owned()));
}

#[tokio::test]
async fn an_unanswered_renewal_counts_from_its_sending() {
    let timing = Timing {
        duration: Duration::from_secs(7),
        renew_deadline: Duration::from_secs(6),
        ..QUICK
    };
    let (candidate, leadership, lease) = leader(server(&[2, 3]), timing);
    let began = Instant::now();
    let keep = candidate.keep(&leadership, lease);
    // The second renewal times out after a second; the next one finds it stored.
    let kept = tokio::time::timeout(Duration::from_millis(1900), keep).await;
    assert!(kept.is_err(), "{kept:?}");
    let counted = leadership.renewed().duration_since(began);
    assert!(counted >= Duration::from_millis(200), "{counted:?}");
    assert!(
        counted < Duration::from_millis(1000),
        "not from when it was found: {counted:?}"
    );
}

#[test]
fn leadership_ends_before_another_can_start() {
    let timing = Timing {
        duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(2),
    };
    let sent = Instant::now();
    let leadership = Leadership::new(3, timing, sent, Pulse::default());
    let after = [0, 9, 10, 15].map(|seconds| sent + Duration::from_secs(seconds));
    assert_eq!(leadership.check_at(after[0]), Ok(Duration::from_secs(15)));
    assert_eq!(leadership.check_at(after[1]), Ok(Duration::from_secs(6)));
    assert!(leadership.check_at(after[2]).is_err());
    let mut challenger = Election::new(timing.duration);
    let lease = Lease {
        metadata: ObjectMeta {
            resource_version: Some("1".into()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some("other".into()),
            ..LeaseSpec::default()
        }),
    };
    // The challenger cannot have seen the renewal before it was sent.
    challenger.observe(Some(&lease), sent);
    assert_eq!(challenger.observe(Some(&lease), after[2]), Move::Wait);
    assert_eq!(challenger.observe(Some(&lease), after[3]), Move::Take);
}
