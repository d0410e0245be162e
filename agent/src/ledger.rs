use berth_api::node::timeline::{TurnOutcome, TurnRecord};
use berth_core::agent::facts::Past;

/// Logs a turn that ended after the last write of the memory, if any.
pub(crate) fn log(written: &Past, now: &Past) {
    if let Some(turn) = ended_turn(written, now) {
        log_turn(turn);
    }
}

fn ended_turn<'a>(written: &Past, now: &'a Past) -> Option<&'a TurnRecord> {
    let newest = now.turns.iter().find(|t| t.end_time.is_some())?;
    // An agent without a memory takes its turns from the BootcNode's status. Ended turns in that status were already
    // logged, so a turn counts only if `written` shows it as running.
    let ran = written
        .turns
        .iter()
        .any(|t| t.end_time.is_none() && t.berth == newest.berth && t.start_time == newest.start_time);
    ran.then_some(newest)
}

fn log_turn(turn: &TurnRecord) {
    let proof = turn.proof.as_ref();
    let boot_id = proof.map(|proof| proof.boot_id.as_str());
    tracing::info!(
        berth = turn.berth,
        node_uid = turn.node_uid,
        outcome = turn.outcome.map(TurnOutcome::as_str),
        reason = turn.reason,
        from = turn.from.as_ref().map(tracing::field::display),
        to = %turn.to,
        booted = proof.and_then(|proof| proof.booted.as_ref()).map(tracing::field::display),
        boot_id_before = turn.boot_id_before,
        boot_id,
        rebooted = boot_id.map(|boot_id| boot_id != turn.boot_id_before),
        node_ready = proof.map(|proof| proof.node_ready),
        drain_seconds = turn.drain_seconds,
        started = %turn.start_time.0,
        ended = turn.end_time.as_ref().map(|end| tracing::field::display(end.0)),
        "turn ended"
    );
}

#[cfg(test)]
mod tests {
    use berth_api::Digest;
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn past(ends: &[Option<i64>]) -> Past {
        fn time(second: i64) -> Time {
            Time::from(Timestamp::from_second(second).unwrap())
        }
        let digest: Digest = format!("sha256:{}", "1".repeat(64)).parse().unwrap();
        let turns = ends.iter().map(|end| TurnRecord {
            berth: "p-0".into(),
            node_uid: "u1".into(),
            from: None,
            to: digest.clone(),
            boot_id_before: "b1".into(),
            start_time: time(0),
            drain_seconds: None,
            proof: None,
            end_time: end.map(time),
            outcome: Some(TurnOutcome::Revoked),
            reason: None,
        });
        Past {
            turns: turns.collect(),
            ..Past::default()
        }
    }

    #[test]
    fn each_turn_is_logged_once_when_it_ends() {
        fn logged(written: &[Option<i64>], now: &[Option<i64>]) -> bool {
            ended_turn(&past(written), &past(now)).is_some()
        }
        assert!(!logged(&[], &[None]), "it runs");
        assert!(logged(&[None], &[Some(9)]));
        assert!(logged(&[None, Some(5)], &[Some(9), Some(5)]));
        assert!(!logged(&[Some(9), Some(5)], &[Some(9), Some(5)]));
        assert!(!logged(&[Some(9)], &[None, Some(9)]), "the next one begins");
        assert!(!logged(&[], &[Some(9), Some(5)]), "taken over from the status");
        assert!(!logged(&[], &[Some(9)]), "likewise, of one turn");
    }
}
