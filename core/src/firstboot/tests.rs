use berth_api::condition::MAX_MESSAGE;
use proptest::prelude::*;

use super::messages::{journal, notice};
use super::*;

fn digest(n: u8) -> Digest {
    format!("sha256:{}", format!("{n:02x}").repeat(32)).parse().unwrap()
}

fn config(more: &str) -> Config {
    Config::parse(format!("image = \"r.io/os:stable\"\n{more}").as_bytes()).unwrap()
}

fn target(version: &str, minimum: Option<&str>) -> Answer {
    Answer::Found(Target {
        digest: digest(2),
        version: Some(version.to_owned()),
        limit: minimum.map(|minimum| BootImageLimit {
            minimum_version: Some(minimum.to_owned()),
            ..BootImageLimit::default()
        }),
    })
}

fn installed_from(version: Option<&str>) -> NodeBootImage {
    NodeBootImage {
        version: version.map(str::to_owned),
        source: "/sysroot/.bootc-aleph.json".to_owned(),
        ..NodeBootImage::default()
    }
}

/// A machine on its first boot.
#[derive(Debug, Clone)]
struct Machine {
    config: Config,
    record: Option<Record>,
    is_node: bool,
    is_overridden: bool,
    boot_image: Option<NodeBootImage>,
    answer: Answer,
    booted: Booted,
    pivot_error: Option<PivotError>,
    is_late: bool,
}

impl Machine {
    fn new(more: &str, boot: Option<&str>, answer: Answer) -> Self {
        Self {
            config: config(more),
            record: None,
            is_node: false,
            is_overridden: false,
            boot_image: boot.map(|boot| installed_from(Some(boot))),
            answer,
            booted: Booted::Digest(digest(1)),
            pivot_error: None,
            is_late: false,
        }
    }

    fn facts(&self) -> Inputs<'_> {
        Inputs {
            config: &self.config,
            record: self.record.as_ref(),
            is_node: self.is_node,
            is_overridden: self.is_overridden,
            boot_image: self.boot_image.as_ref(),
            answer: &self.answer,
            booted: &self.booted,
            pivot_error: self.pivot_error.as_ref(),
            is_late: self.is_late,
        }
    }

    fn next(&self) -> Step {
        next(&self.facts())
    }

    fn verdict(&self) -> Verdict {
        match self.next() {
            Step::End(verdict) => verdict,
            step => panic!("{step:?}"),
        }
    }

    fn remembers(mut self, pivots_to: Option<&Digest>) -> Self {
        let verdict = match self.next() {
            Step::End(verdict) | Step::Pivot(_, verdict) => verdict,
            step => panic!("{step:?}"),
        };
        let record = record(
            &self.facts(),
            &verdict,
            pivots_to,
            Timestamp::UNIX_EPOCH,
            Timestamp::UNIX_EPOCH,
        );
        self.record = Some(record);
        self
    }
}

#[test]
fn each_machine_has_its_outcome() {
    use Outcome::{Allowed, ImageUnavailable, Refused, Unknown};
    const WARN: &str = "onViolation = \"warn\"";
    let limited = target("10.1", Some("9.2"));
    let newest = target("11.0", Some("9.2"));
    let unlimited = target("10.1", None);
    let useless = Answer::Useless("no OS image".into());
    for (more, boot, answer, outcome, words) in [
        ("", Some("9.4"), &limited, Allowed, "from 9.4, which is new enough"),
        ("", None, &unlimited, Allowed, "sets a limit"),
        ("", Some("9.0"), &limited, Refused, "older than the minimum 9.2"),
        ("", Some("9.4"), &newest, Refused, "2 major versions away"),
        (WARN, Some("9.0"), &limited, Refused, "older"),
        (
            "",
            None,
            &limited,
            Unknown,
            "has no record of the image it was installed from",
        ),
        ("", Some("rawhide"), &limited, Unknown, "invalid version"),
        (
            "[limit]\nminimumVersion = \"9.0\"",
            Some("9.0"),
            &limited,
            Allowed,
            "new enough",
        ),
        (
            "[limit]\nminimumVersion = \"9.6\"",
            Some("9.4"),
            &unlimited,
            Refused,
            "minimum 9.6",
        ),
        ("[limit]\nmaxMajorSkew = 2", Some("9.4"), &newest, Allowed, "new enough"),
        ("", Some("9.4"), &useless, ImageUnavailable, "no OS image"),
    ] {
        let verdict = Machine::new(more, boot, answer.clone()).verdict();
        let is_as_expected = verdict.outcome == outcome && verdict.message().contains(words);
        assert!(is_as_expected, "{more} {boot:?} {answer:?}: {verdict:?}");
        assert_eq!(verdict.holds, outcome == Refused && more != WARN, "{verdict:?}");
    }
}

#[test]
fn an_unreachable_registry_is_asked_until_the_deadline() {
    for (answer, outcome) in [
        (Answer::NotAsked, Outcome::RegistryAway),
        (Answer::Away("refused".into()), Outcome::RegistryAway),
        (Answer::HostFailed("no bus".into()), Outcome::HostFailed),
        (Answer::Withheld("manifest unknown".into()), Outcome::ImageUnavailable),
    ] {
        let mut machine = Machine::new("deadline = \"30s\"", Some("9.0"), answer);
        assert_eq!(machine.next(), Step::Ask);
        machine.is_late = true;
        let verdict = machine.verdict();
        assert_eq!((verdict.outcome, verdict.holds), (outcome, false));
        // The verdict lets the kubelet start, so the check is over.
        assert!(machine.remembers(None).record.unwrap().finished);
    }
}

#[test]
fn an_override_releases_a_machine_and_is_reported() {
    for (boot, is_overridden) in [(Some("9.0"), Outcome::Refused), (None, Outcome::Unknown)] {
        let mut machine = Machine::new("", boot, target("10.1", Some("9.2")));
        assert_eq!(machine.verdict().outcome, is_overridden);
        machine.is_overridden = true;
        let verdict = machine.verdict();
        assert_eq!((verdict.outcome, verdict.holds), (Outcome::Overridden, false));
        assert!(
            verdict.found.contains("overridden by /etc/berth/firstboot.override"),
            "{verdict:?}"
        );
        machine.config.pivot = true;
        assert!(matches!(machine.next(), Step::Pivot(..)));
    }
}

#[test]
fn a_refused_machine_stays_refused_without_an_answer() {
    let mut machine = Machine::new("", Some("9.0"), target("10.1", Some("9.2"))).remembers(None);
    assert!(!machine.record.as_ref().unwrap().finished);
    machine.is_late = true;
    for answer in [
        Answer::NotAsked,
        Answer::Away("x".into()),
        Answer::HostFailed("x".into()),
        Answer::Withheld("x".into()),
        Answer::Useless("x".into()),
    ] {
        machine.answer = answer;
        machine.is_overridden = false;
        let verdict = machine.verdict();
        assert_eq!((verdict.outcome, verdict.holds), (Outcome::Refused, true));
        machine.is_overridden = true;
        assert_eq!(machine.verdict().outcome, Outcome::Overridden);
    }
    // The registry answers, but the installer's record cannot be read this time.
    let unread = Machine {
        boot_image: None,
        is_overridden: false,
        answer: target("10.1", Some("9.2")),
        ..machine.clone()
    };
    let verdict = unread.verdict();
    assert_eq!((verdict.outcome, verdict.holds), (Outcome::Refused, true));
    assert!(
        !verdict.message().contains("joins with its installed image"),
        "{verdict:?}"
    );
    let unread = Machine {
        is_overridden: true,
        ..unread
    };
    assert_eq!(unread.verdict().outcome, Outcome::Overridden);
    // The tag may now point to an image with a lower limit.
    machine.is_overridden = false;
    machine.answer = target("10.1", Some("9.0"));
    let verdict = machine.verdict();
    assert_eq!(verdict.outcome, Outcome::Allowed);
    let record = machine.remembers(None).record.unwrap();
    assert!(record.finished && record.status.held, "{record:?}");
}

#[test]
fn an_invalid_config_releases_no_refused_machine() {
    let machine = Machine::new("", Some("9.0"), target("10.1", Some("9.2"))).remembers(None);
    let failed = Verdict::invalid_config("line 1: x").unless_refused(machine.record.as_ref());
    assert!(failed.holds && failed.found.contains("line 1: x"), "{failed:?}");
    let let_go = failed.overridden_by("/etc/go".as_ref());
    assert_eq!((let_go.outcome, let_go.holds), (Outcome::Overridden, false));
    assert!(let_go.found.ends_with("line 1: x; overridden by /etc/go"), "{let_go:?}");
    let free = Verdict::invalid_config("x");
    assert_eq!(free.clone().overridden_by("/etc/go".as_ref()), free);
    assert!(!Verdict::invalid_config("x").unless_refused(None).holds);
    for (finished, outcome, holds) in [
        (false, Outcome::Refused, true),
        (true, Outcome::Refused, false),
        (false, Outcome::Allowed, false),
        (true, Outcome::Allowed, false),
    ] {
        let mut record = machine.record.clone().unwrap();
        (record.finished, record.status.outcome) = (finished, outcome);
        let verdict = Verdict::invalid_config("x").unless_refused(Some(&record));
        assert_eq!(verdict.holds, holds, "{finished} {outcome:?}");
    }
}

fn pivoting() -> Machine {
    Machine::new("pivot = true", Some("9.4"), target("10.1", Some("9.2")))
}

fn pivots(machine: &Machine) -> bool {
    matches!(machine.next(), Step::Pivot(target, _) if target.digest == digest(2))
}

#[test]
fn a_pivot_is_retried_until_it_works() {
    let first = pivoting();
    assert!(pivots(&first));
    for unfit in [
        Machine {
            answer: target("10.1", Some("9.6")),
            ..first.clone()
        },
        Machine {
            boot_image: None,
            ..first.clone()
        },
    ] {
        assert!(matches!(unfit.next(), Step::End(_)), "refused or unknown: no pivot");
    }

    // After a power cut at any point, the pivot is repeated until the machine runs the target.
    let mut rebooted = first.clone().remembers(Some(&digest(2)));
    assert!(!rebooted.record.as_ref().unwrap().finished);
    assert!(pivots(&rebooted));
    rebooted.answer = Answer::NotAsked;
    rebooted.booted = Booted::Digest(digest(2));
    let arrived = rebooted.verdict();
    assert_eq!((arrived.outcome, arrived.pivoted), (Outcome::Allowed, true));
    let record = rebooted.remembers(None).record.unwrap();
    assert_eq!((record.finished, record.pivots), (true, 1));
    assert_eq!(record.status.version.as_deref(), Some("10.1"), "from the run before");

    let mut fails = first;
    for _ in 0..MAX_PIVOTS {
        assert!(pivots(&fails));
        fails = fails.remembers(Some(&digest(2)));
    }
    assert_eq!(fails.verdict().outcome, Outcome::PivotFailed);
    assert!(!fails.verdict().holds);
}

#[test]
fn a_pivot_that_cannot_work_is_not_retried() {
    let first = pivoting();
    for (is_final, is_late, is_retried) in [(false, false, true), (true, false, false), (false, true, false)] {
        let machine = Machine {
            pivot_error: Some(PivotError {
                message: "no space".into(),
                is_final,
            }),
            is_late,
            ..first.clone()
        };
        assert_eq!(pivots(&machine), is_retried, "{is_final} {is_late}");
        assert!(is_retried || machine.verdict().found.contains("no space"));
    }
    let late = Machine {
        is_late: true,
        ..first.clone()
    };
    assert!(late.verdict().found.ends_with("the deadline has passed"));
    let blind = Machine {
        booted: Booted::Unknown("bootc failed".into()),
        ..first.clone()
    };
    assert_eq!(blind.verdict().outcome, Outcome::PivotFailed);
    let there = Machine {
        booted: Booted::Digest(digest(2)),
        ..first
    };
    assert!(there.verdict().found.ends_with("the machine already runs the target"));
}

#[test]
fn a_node_is_left_alone() {
    let mut machine = Machine::new("pivot = true", Some("9.0"), target("10.1", Some("9.2")));
    machine.is_node = true;
    assert_eq!(machine.verdict().outcome, Outcome::NotFirstBoot);
    let machine = machine.remembers(None);
    assert_eq!(machine.next(), Step::Done);
    // An admin has started the kubelet of a refused machine.
    let mut refused = Machine::new("", Some("9.0"), target("10.1", Some("9.2"))).remembers(None);
    refused.is_node = true;
    assert_eq!(refused.next(), Step::Done);
    // The kubelet of this machine was started during the pull.
    let mut overtaken =
        Machine::new("pivot = true", Some("9.4"), target("10.1", Some("9.2"))).remembers(Some(&digest(2)));
    overtaken.is_node = true;
    overtaken.pivot_error = Some(PivotError {
        message: "a kubelet has started meanwhile".to_owned(),
        is_final: true,
    });
    let verdict = overtaken.verdict();
    assert_eq!((verdict.outcome, verdict.holds), (Outcome::PivotFailed, false));
    assert!(
        verdict.found.ends_with("a kubelet has started meanwhile"),
        "{verdict:?}"
    );
    assert!(overtaken.remembers(None).record.unwrap().finished);
}

#[test]
fn the_console_text_fits_a_console() {
    let machine = Machine::new("", Some("9.0"), target("10.1", Some("9.2")));
    let text = notice(Some(&machine.config), &machine.verdict()).unwrap();
    assert_eq!(
        text,
        "
Berth: this machine does NOT join its cluster: its kubelet is held back (Refused).
  Target: r.io/os:stable
  Found: this machine was installed from 9.0, which is older than the minimum
         9.2; the target is r.io/os:stable (10.1)
  To do: install the machine from a newer boot image; to let it join anyway,
         create /etc/berth/firstboot.override and reboot

"
    );
    let allowed = Machine::new("", Some("9.4"), target("10.1", Some("9.2"))).verdict();
    assert_eq!(notice(None, &allowed), None);
    let fields = journal(Some(&machine.config), &machine.verdict());
    assert!(fields.contains(&("BERTH_OUTCOME", "Refused".to_owned())), "{fields:?}");
    assert!(fields.iter().all(|(_, value)| !value.contains('\n')));
}

/// A line has at most 78 characters, and the label `  Found: ` takes nine of them. A line with only one letter is not
/// broken.
#[test]
fn a_notice_breaks_its_lines_at_the_width() {
    let mut verdict = Machine::new("", Some("9.0"), target("10.1", Some("9.2"))).verdict();
    for (first, second, lines) in [("abc", 65, 1), ("abc", 66, 2), ("a", 80, 1), ("ab", 80, 2), ("", 80, 1)] {
        let second = "x".repeat(second);
        verdict.found = format!("{first} {second}").trim().to_owned();
        verdict.remedy = String::new();
        let text = notice(None, &verdict).unwrap();
        let found: Vec<&str> = text.lines().skip(2).filter(|line| !line.is_empty()).collect();
        let expected = match lines {
            1 => vec![format!("  Found: {}", verdict.found)],
            _ => vec![format!("  Found: {first}"), format!("         {second}")],
        };
        assert_eq!(found, expected);
    }
}

fn any_machine() -> impl Strategy<Value = Machine> {
    let version = prop::sample::select(vec!["9.0", "9.4", "11.0", "words", "stream9"]);
    let maybe = proptest::option::of(version.clone());
    let answers = prop_oneof![
        Just(Answer::NotAsked),
        Just(Answer::Away("away\nfrom here".to_owned())),
        Just(Answer::HostFailed("no bus".to_owned())),
        Just(Answer::Withheld("no".to_owned())),
        Just(Answer::Useless("no".to_owned())),
        (version, maybe.clone()).prop_map(|(of, least)| target(of, least)),
    ];
    let file = prop_oneof![
        Just(""),
        Just("onViolation = \"warn\""),
        Just("[limit]\nmaxMajorSkew = 0")
    ];
    let booted = prop_oneof![
        Just(Booted::Unknown("?".to_owned())),
        Just(Booted::Digest(digest(1))),
        Just(Booted::Digest(digest(2)))
    ];
    let pivot_error = proptest::option::of(any::<bool>().prop_map(|is_final| PivotError {
        message: "t".into(),
        is_final,
    }));
    (
        (file, maybe, answers, booted, pivot_error),
        (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
    )
        .prop_map(
            |((file, boot, answer, booted, pivot_error), (is_node, is_overridden, is_late, pivot))| {
                let mut machine = Machine {
                    booted,
                    pivot_error,
                    is_node,
                    is_overridden,
                    is_late,
                    ..Machine::new(file, boot, answer)
                };
                machine.config.pivot = pivot;
                machine
            },
        )
}

proptest! {
    #[test]
    fn no_machine_waits_too_long_or_is_held_unrefused(
        mut machine in any_machine(),
        earlier in proptest::option::of(any_machine()),
    ) {
        if let Some(earlier) = earlier
            && let Step::End(verdict) | Step::Pivot(_, verdict) = earlier.next()
        {
            let to = matches!(earlier.next(), Step::Pivot(..)).then(|| digest(2));
            machine.record = Some(record(&earlier.facts(), &verdict, to.as_ref(), Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH));
        }
        let step = machine.next();
        let over = machine.is_node || machine.record.as_ref().is_some_and(|record| record.finished);
        prop_assert!(!machine.is_late || matches!(step, Step::Done | Step::End(_)), "{step:?}");
        prop_assert!(!over || matches!(step, Step::Done | Step::End(_)), "a machine that may be a node never pivots: {step:?}");
        if let Step::End(verdict) = &step {
            prop_assert!(!verdict.holds || verdict.outcome == Outcome::Refused, "{verdict:?}");
            prop_assert!(!verdict.holds || !machine.is_overridden, "{verdict:?}");
            prop_assert!(verdict.message().chars().count() <= MAX_MESSAGE + 1 && !verdict.message().contains('\n'));
            prop_assert_eq!(notice(Some(&machine.config), verdict).is_some(), verdict.outcome.is_trouble());
        }
        // A machine is allowed only if its boot image was compared and is within the limit, or if there is no limit.
        let limit = match &machine.answer {
            Answer::Found(target) => Some(machine.config.limit_for(target.limit.as_ref())),
            _ => None,
        };
        if let (Some(limit), Answer::Found(target)) = (limit, &machine.answer) {
            let boot = machine.boot_image.as_ref().and_then(|image| image.version.as_deref());
            let compared = skew(boot, target.version.as_deref(), &[&limit]);
            let allowed = match &step {
                Step::End(verdict) => verdict.outcome == Outcome::Allowed && !verdict.pivoted,
                Step::Pivot(_, verdict) => verdict.outcome == Outcome::Allowed,
                _ => false,
            };
            prop_assert!(!allowed || matches!(compared, Skew::Within | Skew::NoLimit), "{compared:?} {step:?}");
        }
    }
}
