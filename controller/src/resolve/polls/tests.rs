use super::*;

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

fn question(n: usize) -> Question {
    Question {
        image: format!("r{}.example/os:{n}", n / 100).parse().unwrap(),
        secret: None,
    }
}

fn image() -> Target {
    Target {
        image: "r0.example/os:0".into(),
        digest: format!("sha256:{}", "0".repeat(64)).parse().unwrap(),
        version: None,
        metadata: None,
        platforms: vec![],
        publish_time: None,
    }
}

fn every(interval: Duration) -> Ask {
    Ask {
        interval: Some(interval),
        ..Ask::default()
    }
}

fn urgent(after: Moment) -> Ask {
    Ask {
        after: Some(after),
        urgent: true,
        until_answered: true,
        ..Ask::default()
    }
}

fn by_admin(after: Moment) -> Ask {
    Ask {
        after: Some(after),
        by_admin: true,
        gather: Duration::from_millis(100),
        ..Ask::default()
    }
}

/// A schedule with a simulated clock.
struct World {
    polls: Polls,
    now: Moment,
    asks: BTreeMap<Question, Vec<Ask>>,
    /// Requests so far, with their times.
    requests: Vec<(Moment, Question)>,
    /// Unanswered requests, and when each will be answered.
    running: Vec<(Moment, Question)>,
}

impl World {
    fn new(asks: impl IntoIterator<Item = (usize, Ask)>) -> Self {
        let mut world = Self {
            polls: Polls::default(),
            now: Moment::after(Duration::from_secs(5)),
            asks: BTreeMap::new(),
            requests: vec![],
            running: vec![],
        };
        for (n, ask) in asks {
            world.asks.entry(question(n)).or_default().push(ask);
        }
        world
    }

    fn clocks(&self) -> (Moment, Timestamp) {
        let wall = Timestamp::UNIX_EPOCH + self.now.since(Moment::default());
        (self.now, wall)
    }

    /// Advances the time. Each request is answered after `latency`.
    fn pass(&mut self, time: Duration, latency: Duration, answer: impl Fn(&Question) -> Result<Target, ResolveError>) {
        let end = self.now + time;
        loop {
            self.polls.ask(self.asks.clone(), self.now);
            for (question, _) in self.polls.start(self.now) {
                self.requests.push((self.now, question.clone()));
                self.running.push((self.now + latency, question));
            }
            let answers = self.running.iter().map(|(at, _)| *at).min();
            let next = self.polls.due().into_iter().chain(answers).min();
            let Some(next) = next.filter(|next| *next <= end) else {
                break;
            };
            self.now = self.now.max(next);
            let running = std::mem::take(&mut self.running);
            let (done, rest): (Vec<_>, Vec<_>) = running.into_iter().partition(|(at, _)| *at <= self.now);
            self.running = rest;
            for (_, question) in done {
                self.polls.answered(&question, answer(&question), self.clocks());
            }
        }
        self.now = end;
    }

    fn count(&mut self) -> usize {
        std::mem::take(&mut self.requests).len()
    }
}

fn fails(reason: ResolveReason) -> Result<Target, ResolveError> {
    Err(ResolveError::new(reason, "no"))
}

fn away(_: &Question) -> Result<Target, ResolveError> {
    fails(ResolveReason::RegistryUnavailable)
}

fn well(_: &Question) -> Result<Target, ResolveError> {
    Ok(image())
}

const QUICK: Duration = Duration::from_millis(10);

#[test]
fn five_hundred_pools_on_twenty_tags_are_twenty_polls_an_interval() {
    let mut world = World::new((0..500).map(|pool| (pool % 20, every(HOUR))));
    world.pass(Duration::from_secs(5 * 60), QUICK, well);
    let first: std::collections::BTreeSet<_> = world.requests.iter().map(|(at, _)| *at).collect();
    assert!(first.len() > 10, "they are spread");
    assert_eq!(world.count(), 20);
    world.pass(49 * MINUTE, QUICK, well);
    assert_eq!(world.count(), 0);
    world.pass(18 * MINUTE, QUICK, well);
    assert_eq!(world.count(), 20);
    world.pass(100 * HOUR, QUICK, well);
    let count = world.count();
    assert!((1900..=2100).contains(&count), "{count}");
}

#[test]
fn the_shortest_interval_of_the_pools_applies() {
    let mut world = World::new([(0, every(12 * HOUR)), (0, every(MINUTE)), (1, Ask::default())]);
    world.pass(HOUR, QUICK, well);
    assert!(world.requests.iter().all(|(_, q)| *q == question(0)));
    let count = world.count();
    assert!((54..=68).contains(&count), "{count}");
}

#[test]
fn simultaneous_requests_are_merged() {
    let start = Moment::after(Duration::from_secs(5));
    let mut world = World::new([
        (0, by_admin(start)),
        (0, by_admin(start + QUICK)),
        (0, every(12 * HOUR)),
    ]);
    world.pass(Duration::from_millis(99), QUICK, well);
    assert_eq!(world.count(), 0);
    world.pass(Duration::from_millis(50), QUICK, well);
    assert_eq!(world.count(), 1);
    assert!(world.polls.is_over(&question(0), start + QUICK, world.now));
    let later = start + Duration::from_millis(120);
    assert!(
        !world.polls.is_over(&question(0), later, world.now),
        "it may have looked before that"
    );
    world.asks.entry(question(0)).or_default().push(by_admin(later));
    world.pass(Duration::from_secs(2), QUICK, well);
    assert_eq!(world.count(), 1);
}

#[test]
fn an_unavailable_registry_is_asked_ever_more_rarely() {
    // 20 tags of resolved images in registry r0, and one in r1.
    let mut world = World::new((0..20).map(|n| (n, every(12 * HOUR))).chain([(100, every(MINUTE))]));
    fn first_fails(q: &Question) -> Result<Target, ResolveError> {
        if q.registry() == "r0.example" { away(q) } else { well(q) }
    }
    world.pass(24 * HOUR, QUICK, first_fails);
    let requests = std::mem::take(&mut world.requests);
    let (to_first, others): (Vec<_>, Vec<_>) = requests.into_iter().partition(|(_, q)| q.registry() == "r0.example");
    assert!((20..=90).contains(&to_first.len()), "{}", to_first.len());
    assert!((1300..=1620).contains(&others.len()), "{}", others.len());
    let longest = to_first
        .windows(2)
        .map(|pair| pair[1].0.since(pair[0].0))
        .max()
        .unwrap();
    assert!(longest <= HOUR + MINUTE && longest > 20 * MINUTE, "{longest:?}");
    // The registry answers again: within an hour, all waiting questions have been asked.
    world.pass(HOUR + MINUTE, QUICK, well);
    let asked: std::collections::BTreeSet<_> = world.requests.iter().map(|(_, q)| q.clone()).collect();
    assert_eq!(asked.len(), 21);
    assert_eq!(world.polls.answer(&question(3), None, world.now).trouble, None);
}

#[test]
fn blocked_pools_are_retried_often_but_one_by_one() {
    let start = Moment::after(Duration::from_secs(5));
    let mut world = World::new((0..20).map(|n| (n, urgent(start))));
    world.pass(Duration::from_secs(30), Duration::from_secs(20), away);
    assert_eq!(world.count(), 21, "all at first, then one");
    world.pass(HOUR, Duration::from_secs(20), away);
    let tried: std::collections::BTreeSet<_> = world.requests.iter().map(|(_, q)| q.clone()).collect();
    assert_eq!(tried.len(), 20, "each has its turn");
    let gaps = world.requests.windows(2).map(|pair| pair[1].0.since(pair[0].0));
    assert!(gaps.max().unwrap() <= RETRY_MAX * 2 + Duration::from_secs(20));
    let trouble = world.polls.answer(&question(7), None, world.now).trouble.unwrap();
    assert_eq!(
        (&*trouble.reason, trouble.since.as_second()),
        ("RegistryUnavailable", 25)
    );
    assert!(trouble.next.is_some());
    world.pass(Duration::from_secs(75), QUICK, well);
    let unanswered = (0..20).filter(|n| world.polls.found(&question(*n)).is_none()).count();
    assert_eq!(unanswered, 0);
}

#[test]
fn a_question_that_is_refused_backs_off_alone() {
    let start = Moment::after(Duration::from_secs(5));
    for reason in [
        ResolveReason::ImageNotFound,
        ResolveReason::DigestUnavailable,
        ResolveReason::Unauthorized,
        ResolveReason::InvalidAnswer,
        ResolveReason::DigestMismatch,
    ] {
        let mut world = World::new([(0, urgent(start)), (1, every(MINUTE))]);
        world.pass(HOUR, QUICK, |q| if *q == question(0) { fails(reason) } else { well(q) });
        let (bad, good): (Vec<_>, Vec<_>) = world.requests.iter().partition(|(_, q)| *q == question(0));
        assert!((50..=120).contains(&bad.len()), "{reason:?}: {}", bad.len());
        assert!(good.len() >= 54, "{reason:?}: {}", good.len());
    }
}

#[test]
fn one_unservable_image_causes_no_storm() {
    let mut world = World::new((0..50).map(|n| (n, every(MINUTE))));
    world.pass(
        2 * HOUR,
        QUICK,
        |q: &Question| if *q == question(7) { away(q) } else { well(q) },
    );
    let bad = world.requests.iter().filter(|(_, q)| *q == question(7)).count();
    assert!(bad < 400, "{bad}");
    let good = world.count() - bad;
    assert!(good > 49 * 80, "{good}");
}

#[test]
fn an_admin_overrides_backoff_but_not_retry_after() {
    let start = Moment::after(Duration::from_secs(5));
    fn limited(seconds: Option<u64>) -> impl Fn(&Question) -> Result<Target, ResolveError> {
        move |_: &Question| {
            Err(ResolveError {
                retry_after: seconds.map(Duration::from_secs),
                ..ResolveError::new(ResolveReason::RateLimited, "too many")
            })
        }
    }
    for (seconds, allowed) in [(Some(600), false), (None, true)] {
        let mut world = World::new([(0, urgent(start)), (1, every(12 * HOUR))]);
        world.pass(Duration::from_millis(500), QUICK, limited(seconds));
        assert_eq!(world.count(), 1);
        world.asks.entry(question(1)).or_default().push(by_admin(world.now));
        let requested = world.now;
        world.pass(Duration::from_millis(500), QUICK, limited(seconds));
        assert_eq!(world.count() == 1, allowed);
        assert!(
            world.polls.is_over(&question(1), requested, world.now),
            "the admin sees it"
        );
        let trouble = world.polls.answer(&question(1), Some(requested), world.now).trouble;
        assert_eq!(trouble.as_ref().map(|t| &*t.reason), Some("RateLimited"), "and why");
        if !allowed {
            world.pass(Duration::from_secs(595), QUICK, well);
            assert_eq!(world.count(), 0);
            world.pass(Duration::from_secs(10), QUICK, well);
            assert!(world.count() >= 1);
        }
    }
    let mut world = World::new([(0, urgent(start))]);
    world.pass(QUICK, Duration::ZERO, limited(Some(u64::MAX)));
    world.count();
    world.pass(HOUR + MINUTE, QUICK, well);
    assert_eq!(world.count(), 1, "an hour at most");
}

#[test]
fn an_unwanted_failure_is_not_retried() {
    let start = Moment::after(Duration::from_secs(5));
    let mut world = World::new([(0, by_admin(start))]);
    world.pass(24 * HOUR, QUICK, away);
    assert_eq!(world.count(), 1);
    let trouble = world.polls.answer(&question(0), None, world.now).trouble.unwrap();
    assert_eq!(trouble.next, None);
}

#[test]
fn blocked_pools_do_not_starve_the_others() {
    let start = Moment::after(Duration::from_secs(5));
    for latency in [QUICK, Duration::from_secs(20)] {
        let mut world = World::new([(0, urgent(start)), (1, every(12 * HOUR))]);
        fn only_first_fails(q: &Question) -> Result<Target, ResolveError> {
            if *q == question(0) { away(q) } else { well(q) }
        }
        world.pass(48 * HOUR, latency, only_first_fails);
        let others = world.requests.iter().filter(|(_, q)| *q == question(1)).count();
        assert!((4..=6).contains(&others), "{others}");
        // Tries of question 0 do not change the reported retry time of question 1.
        world.pass(14 * HOUR, latency, away);
        while world.running.iter().any(|(_, q)| *q == question(1)) {
            world.pass(MINUTE, latency, away);
        }
        fn next(world: &World) -> Option<Timestamp> {
            world.polls.answer(&question(1), None, world.now).trouble.unwrap().next
        }
        let (first, asked) = (next(&world), world.requests.len());
        while world.requests[asked..].len() < 3 {
            world.pass(MINUTE, latency, away);
        }
        let turns = world.requests[asked..]
            .iter()
            .filter(|(_, q)| *q == question(1))
            .count();
        assert!(turns > 0 || next(&world) == first, "{first:?}");
    }
}

fn limited(seconds: u64) -> Result<Target, ResolveError> {
    Err(ResolveError {
        retry_after: Some(Duration::from_secs(seconds)),
        ..ResolveError::new(ResolveReason::RateLimited, "too many")
    })
}

/// Returns the monotonic and the wall-clock time, this many seconds after the start.
fn at(seconds: u64) -> (Moment, Timestamp) {
    let time = Duration::from_secs(seconds);
    (Moment::after(time), Timestamp::UNIX_EPOCH + time)
}

/// Returns a schedule with these questions, given by number.
fn polls_of(asks: &[(usize, Ask)]) -> Polls {
    let mut polls = Polls::default();
    let mut all = BTreeMap::<Question, Vec<Ask>>::new();
    for (n, ask) in asks {
        all.entry(question(*n)).or_default().push(ask.clone());
    }
    polls.ask(all, Moment::default());
    polls
}

#[test]
fn a_request_may_begin_at_the_moment_asked_for() {
    let mut polls = polls_of(&[(0, urgent(Moment::after(Duration::from_secs(1))))]);
    assert_eq!(polls.start(at(1).0).len(), 1);
    polls.answered(&question(0), well(&question(0)), at(1));
    assert_eq!(polls.due(), None);
}

#[test]
fn a_failure_is_retried_while_a_pool_waits() {
    fn waits(ask: Ask) -> bool {
        let mut job = Job::new(Moment::default());
        job.asks = vec![ask];
        job.is_tried_again()
    }
    assert!(!waits(Ask::default()));
    assert!(waits(every(MINUTE)));
    assert!(waits(Ask {
        urgent: true,
        ..Ask::default()
    }));
    assert!(waits(Ask {
        until_answered: true,
        ..Ask::default()
    }));
}

#[test]
fn only_retry_after_forbids_requests() {
    let mut polls = polls_of(&[(0, urgent(Moment::default())), (1, Ask::default())]);
    polls.start(at(0).0);
    polls.answered(&question(0), away(&question(0)), at(1));
    assert!(
        !polls.is_over(&question(1), at(1).0, at(1).0),
        "our own backoff answers no admin"
    );
    polls.start(at(1000).0);
    polls.answered(&question(0), limited(600), at(1001));
    assert!(polls.is_over(&question(1), at(1600).0, at(1600).0));
    assert!(!polls.is_over(&question(1), at(1601).0, at(1601).0), "the time is over");
}

#[test]
fn requests_that_fail_together_count_once() {
    for (second, attempts) in [(0, 1), (1, 2)] {
        let start = Moment::default();
        let mut polls = polls_of(&[(0, urgent(start)), (1, by_admin(start + Duration::from_secs(second)))]);
        if second == 0 {
            assert_eq!(polls.start(at(0).0 + Duration::from_millis(100)).len(), 2);
            polls.answered(&question(0), away(&question(0)), at(1));
        } else {
            assert_eq!(polls.start(at(0).0).len(), 1);
            polls.answered(&question(0), away(&question(0)), at(2));
            // The second request begins at the very moment when the first one fails.
            assert_eq!(polls.start(at(2).0).len(), 1);
        }
        polls.answered(&question(1), away(&question(1)), at(3));
        assert_eq!(polls.outages["r0.example"].failure.attempts, attempts);
    }
}

#[test]
fn a_newer_request_ends_the_outage() {
    let start = Moment::default();
    let asks = [
        (0, urgent(start)),
        (1, every(HOUR)),
        (100, urgent(start)),
        (2, by_admin(start + Duration::from_secs(2))),
    ];
    let mut polls = polls_of(&asks);
    polls.start(at(1).0);
    polls.answered(&question(0), away(&question(0)), at(2));
    polls.answered(&question(100), fails(ResolveReason::ImageNotFound), at(2));
    for n in [0, 100] {
        let failure = polls.jobs.get_mut(&question(n)).unwrap().failure.as_mut().unwrap();
        failure.late = at(9000).0;
    }
    let begun = polls.start(at(2).0 + Duration::from_millis(100));
    assert_eq!(begun.len(), 1, "the admin's");
    polls.outages.get_mut("r0.example").unwrap().failure.noted = (at(2).0 + Duration::from_millis(100), at(2).1);
    polls.answered(&question(2), well(&question(2)), at(3));
    assert!(polls.outages.is_empty());
    let late = [0, 100].map(|n| polls.jobs[&question(n)].failure.as_ref().unwrap().late);
    assert!(late[0] <= at(3).0 + CATCH_UP_TIME, "asked soon");
    assert_eq!(late[1], at(9000).0, "another registry has nothing to do with it");
}

#[test]
fn only_an_own_try_postpones_patient_questions() {
    let mut polls = polls_of(&[(0, every(12 * HOUR))]);
    fn fail(polls: &mut Polls, asks: Vec<Ask>, begin: Moment, end: Moment) -> Moment {
        polls.ask(BTreeMap::from([(question(0), asks)]), begin);
        assert_eq!(polls.start(begin).len(), 1);
        let wall = Timestamp::UNIX_EPOCH + end.since(Moment::default());
        polls.answered(&question(0), away(&question(0)), (end, wall));
        polls.outages["r0.example"].failure.late
    }
    fn daily() -> Ask {
        every(12 * HOUR)
    }
    let first = fail(&mut polls, vec![daily()], at(400).0, at(401).0);
    let soon = at(401).0 + Duration::from_millis(100);
    assert!(soon < first, "before their turn");
    let asked = fail(&mut polls, vec![daily(), by_admin(at(401).0)], soon, soon);
    assert_eq!(asked, first, "an admin's try postpones nothing");
    let second = fail(
        &mut polls,
        vec![daily()],
        first + POLL_RETRY_MAX,
        first + POLL_RETRY_MAX,
    );
    assert!(second > first + POLL_RETRY_MAX, "their own try does");
    let third = fail(
        &mut polls,
        vec![daily(), urgent(Moment::default())],
        second + HOUR,
        second + HOUR,
    );
    assert_eq!(third, second, "a blocked pool postpones no other question");
}

#[test]
fn an_outage_concerns_blocked_pools() {
    let start = Moment::default();
    let mut polls = polls_of(&[(0, urgent(start)), (1, every(12 * HOUR)), (2, urgent(start + HOUR))]);
    polls.start(at(1).0);
    polls.answered(&question(0), away(&question(0)), at(2));
    fn trouble(polls: &Polls, n: usize, now: Moment) -> bool {
        polls.answer(&question(n), None, now).trouble.is_some()
    }
    assert!(trouble(&polls, 0, at(3).0) && trouble(&polls, 2, at(3).0));
    assert!(!trouble(&polls, 1, at(3).0), "it has its image, and time");
    polls.jobs.get_mut(&question(2)).unwrap().running = true;
    assert!(!trouble(&polls, 2, at(3).0), "it is being asked right now");
}

#[test]
fn only_newer_answers_of_a_registry_end_its_outage() {
    let start = at(5).0;
    for (second, of_our_own) in [
        (well(&question(1)), false),
        (fails(ResolveReason::ImageNotFound), false),
        (fails(ResolveReason::PullSecretNotFound), true),
    ] {
        let mut polls = Polls::default();
        let asks = BTreeMap::from([(question(0), vec![urgent(start)]), (question(1), vec![urgent(start)])]);
        polls.ask(asks.clone(), start);
        assert_eq!(polls.start(start).len(), 2);
        polls.answered(&question(0), limited(600), at(6));
        polls.answered(&question(1), second.clone(), at(7));
        assert!(polls.is_over(&question(0), at(8).0, at(8).0), "it is left alone");
        // The registry permits requests again by now. Its answer ends the outage. An error on the controller's side
        // does not.
        polls.ask(asks, at(1305).0);
        let begun = polls.start(at(1305).0);
        assert_eq!(begun.len(), 1);
        polls.answered(&begun[0].0, second, at(1306));
        assert_eq!(polls.outages.is_empty(), !of_our_own);
        if of_our_own {
            let next = polls.due().unwrap();
            assert!(next <= at(1306).0 + RETRY_MAX * 2, "another question has its turn");
        }
    }
}
