//! The token of an agent that is a service of its host, and when the agent renews it.
//!
//! An admin gives the agent its first token, which is bound to the Node. The agent keeps the current token in a file of
//! its own. The age of a token is the age of that file: the host's clock is not compared with the API server's.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

/// Longest token that is read, in bytes.
pub const MAX_LENGTH: usize = 32 << 10;
/// Lifetime of a token that the agent requests. The API server may grant less.
pub const LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);
/// A token is renewed at this age at the latest, so that a host may be off for most of the token's lifetime.
const LATEST: Duration = Duration::from_secs(24 * 3600);
/// A token with a short lifetime is renewed at the age of its lifetime divided by this number.
const PART: u32 = 3;
/// A renewal may come earlier, by a random part of the age up to this one.
const SPREAD: f64 = 0.2;

/// Time until the agent's client uses a new token: it reads the file once a minute, and a request with the earlier token
/// may still be under way.
const TAKES_EFFECT: Duration = Duration::from_secs(70);

/// The claims of a token that is bound to a Node. They are read without a check of the signature, which only the API
/// server needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    /// Namespace of the service account.
    pub namespace: String,
    /// Name of the service account.
    pub account: String,
    /// Name of the Node.
    pub node: String,
    /// UID of the Node.
    pub node_uid: String,
    /// Time of the token's issue, by the API server's clock, in seconds since 1970.
    pub issued: u64,
    /// Time from the issue of the token to its expiry, both by the API server's clock.
    pub lifetime: Duration,
}

/// Reason why the agent cannot renew a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The text is not a token of a service account.
    #[error("it is not a token of a service account")]
    NotOfAccount,
    /// The token is bound to a pod, or to nothing.
    #[error("it is not bound to a Node")]
    NotOfNode,
    /// The token has no lifetime.
    #[error("it has no valid time of issue or expiry")]
    NoLifetime,
}

impl TokenError {
    /// True if the text may be a part of a token, because a program is still writing the file.
    pub fn may_be_a_part(self) -> bool {
        self == Self::NotOfAccount
    }
}

#[derive(Deserialize)]
struct Payload {
    iat: Option<u64>,
    exp: Option<u64>,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Option<Kubernetes>,
}

#[derive(Deserialize)]
struct Kubernetes {
    namespace: String,
    serviceaccount: Object,
    node: Option<Object>,
    pod: Option<Object>,
}

#[derive(Deserialize)]
struct Object {
    name: String,
    uid: String,
}

impl Claims {
    /// Reads the claims of a token.
    ///
    /// # Errors
    /// When the token is not one that is bound to a Node. The error does not contain the token.
    pub fn read(token: &str) -> Result<Self, TokenError> {
        let token = token.trim();
        let payload = token.split('.').nth(1).filter(|_| token.len() <= MAX_LENGTH);
        let payload = URL_SAFE_NO_PAD.decode(payload.ok_or(TokenError::NotOfAccount)?);
        let payload = payload.map_err(|_| TokenError::NotOfAccount)?;
        let payload: Payload = serde_json::from_slice(&payload).map_err(|_| TokenError::NotOfAccount)?;
        let bound = payload.kubernetes.ok_or(TokenError::NotOfAccount)?;
        let node = bound
            .node
            .filter(|_| bound.pod.is_none())
            .ok_or(TokenError::NotOfNode)?;
        let (Some(issued), Some(expires)) = (payload.iat, payload.exp) else {
            return Err(TokenError::NoLifetime);
        };
        let lifetime = expires.saturating_sub(issued);
        if lifetime == 0 {
            return Err(TokenError::NoLifetime);
        }
        Ok(Self {
            namespace: bound.namespace,
            account: bound.serviceaccount.name,
            node: node.name,
            node_uid: node.uid,
            issued,
            lifetime: Duration::from_secs(lifetime),
        })
    }

    /// True if both tokens belong to the same account and the same Node.
    pub fn is_like(&self, other: &Self) -> bool {
        let (issued, lifetime) = (self.issued, self.lifetime);
        *self
            == Self {
                issued,
                lifetime,
                ..other.clone()
            }
    }
}

/// The token in the admin's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Given {
    /// The file has no token that is bound to a Node, or cannot be read now.
    Missing,
    /// The agent copied this token before.
    Known,
    /// The API server issued this token before the one that the agent keeps. A rollback of the host, or a tool that
    /// manages its files, has brought it back.
    Older,
    /// The agent has not copied this token yet.
    New,
}

/// The token that an admin gave, and the token that the agent keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tokens {
    /// The token in the admin's file.
    pub given: Given,
    /// The token that the agent keeps; `None` if its file is missing or broken.
    pub kept: Option<Kept>,
}

/// The token that the agent keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// True if the agent requested it itself.
    pub is_renewed: bool,
    /// Age of its file; `None` if the file's time is in the future, so that the age is unknown.
    pub age: Option<Duration>,
    /// Lifetime of the token.
    pub lifetime: Duration,
}

/// The next step with the tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Copy the admin's token. If there is none, this fails, and an admin must write one.
    TakeOver,
    /// Request a new token.
    Renew,
    /// The token is new enough.
    Wait,
}

impl Tokens {
    /// Returns the next step. `chance`: random, from 0 to 1, drawn once for each agent process.
    pub fn next(&self, chance: f64) -> Next {
        match (self.given, self.kept) {
            (Given::New, _) | (_, None) => Next::TakeOver,
            (_, Some(kept)) if kept.is_due(chance) => Next::Renew,
            (_, Some(_)) => Next::Wait,
        }
    }

    /// Like [`Self::next`], after the API server has rejected the token of the agent's client.
    pub fn next_after_rejection(&self, chance: f64) -> Next {
        let next = self.next(chance);
        // The rejected token may be an earlier one.
        let is_fresh = self
            .kept
            .and_then(|kept| kept.age)
            .is_some_and(|age| age < TAKES_EFFECT);
        if next == Next::Wait && !is_fresh {
            Next::Renew
        } else {
            next
        }
    }

    /// True if the agent should request a token with the admin's token, after the API server has rejected the kept one.
    /// The kept token stays in its file until that succeeds: a server with a fault may reject valid tokens for a while.
    pub fn may_use_given(&self) -> bool {
        match self.given {
            Given::Missing => false,
            Given::Known => self.kept.is_none_or(|kept| kept.is_renewed),
            Given::Older | Given::New => true,
        }
    }
}

impl Kept {
    fn is_due(&self, chance: f64) -> bool {
        // An admin's token may be older than its file. So the agent renews it as soon as it has it.
        if !self.is_renewed {
            return true;
        }
        let latest = LATEST.min(self.lifetime / PART);
        let due = latest.mul_f64(1.0 - SPREAD * chance.clamp(0.0, 1.0));
        self.age.is_none_or(|age| age >= due)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn token(payload: &Value) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(payload.to_string()))
    }

    fn payload() -> Value {
        json!({
            "iat": 1000, "exp": 4600,
            "kubernetes.io": {
                "namespace": "berth-system",
                "serviceaccount": {"name": "berth-agent", "uid": "a"},
                "node": {"name": "n1", "uid": "u1"},
            },
        })
    }

    #[test]
    fn the_claims_of_a_token_of_a_node_are_read() {
        let claims = Claims::read(&format!("{}\n", token(&payload()))).unwrap();
        assert_eq!((claims.node.as_str(), claims.node_uid.as_str()), ("n1", "u1"));
        assert_eq!(
            (claims.namespace.as_str(), claims.account.as_str()),
            ("berth-system", "berth-agent")
        );
        assert_eq!((claims.issued, claims.lifetime), (1000, Duration::from_secs(3600)));
        let mut longer = payload();
        longer["iat"] = json!(2000);
        longer["exp"] = json!(9000);
        assert!(claims.is_like(&Claims::read(&token(&longer)).unwrap()));
        longer["kubernetes.io"]["node"]["uid"] = json!("u2");
        assert!(!claims.is_like(&Claims::read(&token(&longer)).unwrap()));
    }

    #[test]
    fn another_token_is_refused() {
        let change = |key: &str, value: Value| {
            let mut changed = payload();
            changed[key] = value;
            Claims::read(&token(&changed)).unwrap_err()
        };
        let mut of_pod = payload()["kubernetes.io"].clone();
        of_pod["pod"] = json!({"name": "p", "uid": "p"});
        assert_eq!(change("kubernetes.io", of_pod), TokenError::NotOfNode);
        let mut unbound = payload()["kubernetes.io"].clone();
        unbound["node"] = Value::Null;
        assert_eq!(change("kubernetes.io", unbound), TokenError::NotOfNode);
        assert_eq!(change("kubernetes.io", Value::Null), TokenError::NotOfAccount);
        assert_eq!(change("exp", json!(1000)), TokenError::NoLifetime);
        assert_eq!(change("exp", json!(5)), TokenError::NoLifetime);
        assert_eq!(change("exp", Value::Null), TokenError::NoLifetime);
        assert_eq!(change("iat", Value::Null), TokenError::NoLifetime);
        assert_eq!(change("iat", json!(-1)), TokenError::NotOfAccount);
        for text in ["", "opaque", "a.b", "a.!.c", "...", &"x.".repeat(MAX_LENGTH)] {
            assert_eq!(Claims::read(text), Err(TokenError::NotOfAccount), "{text:.20}");
        }
        let whole = token(&payload());
        for length in 0..whole.rfind('.').unwrap() {
            assert!(Claims::read(&whole[..length]).unwrap_err().may_be_a_part(), "{length}");
        }
        assert!(!TokenError::NotOfNode.may_be_a_part());
    }

    const HOUR: Duration = Duration::from_secs(3600);

    /// A renewed token of this age.
    fn kept(age: Duration) -> Kept {
        Kept {
            is_renewed: true,
            age: Some(age),
            lifetime: LIFETIME,
        }
    }

    fn next(kept: Kept, chance: f64) -> Next {
        let tokens = Tokens {
            given: Given::Known,
            kept: Some(kept),
        };
        tokens.next(chance)
    }

    #[test]
    fn a_token_is_renewed_long_before_it_expires() {
        assert_eq!(next(kept(HOUR * 23), 0.0), Next::Wait);
        assert_eq!(next(kept(HOUR * 23), 1.0), Next::Renew, "up to a fifth earlier");
        assert_eq!(next(kept(HOUR * 24), 0.0), Next::Renew);
        for (age, expected) in [(HOUR * 7, Next::Wait), (HOUR * 8, Next::Renew)] {
            let short = Kept {
                lifetime: HOUR * 24,
                ..kept(age)
            };
            assert_eq!(next(short, 0.0), expected, "{age:?} of a day");
        }
        let in_future = Kept {
            age: None,
            ..kept(HOUR)
        };
        assert_eq!(next(in_future, 0.0), Next::Renew, "the clock was set back");
        let given = Kept {
            is_renewed: false,
            ..kept(Duration::ZERO)
        };
        assert_eq!(next(given, 0.0), Next::Renew, "of unknown age");
    }

    #[test]
    fn an_admins_token_is_taken_over_if_it_is_new_or_the_copy_is_lost() {
        let (kept, none) = (Some(kept(HOUR)), None);
        for (given, kept, expected) in [
            (Given::New, none, Next::TakeOver),
            (Given::New, kept, Next::TakeOver),
            (Given::Known, none, Next::TakeOver),
            (Given::Known, kept, Next::Wait),
            (Given::Older, kept, Next::Wait),
            (Given::Missing, none, Next::TakeOver),
            (Given::Missing, kept, Next::Wait),
        ] {
            assert_eq!(Tokens { given, kept }.next(0.0), expected, "{given:?} {kept:?}");
        }
    }

    #[test]
    fn a_rejected_token_is_renewed_before_it_is_due() {
        for (age, expected) in [
            (5, Next::Wait),
            (69, Next::Wait),
            (70, Next::Renew),
            (3600, Next::Renew),
        ] {
            let kept = Some(kept(Duration::from_secs(age)));
            let given = Given::Known;
            assert_eq!(Tokens { given, kept }.next(0.0), Next::Wait);
            assert_eq!(Tokens { given, kept }.next_after_rejection(0.0), expected, "{age} s");
            let given = Given::New;
            assert_eq!(Tokens { given, kept }.next_after_rejection(0.0), Next::TakeOver);
        }
    }

    #[test]
    fn after_a_rejection_only_another_token_is_tried() {
        let renewed = kept(HOUR);
        let copy = Kept {
            is_renewed: false,
            ..renewed
        };
        for (given, kept, expected) in [
            (Given::Known, Some(renewed), true),
            (Given::Known, Some(copy), false),
            (Given::Older, Some(renewed), true),
            (Given::Older, Some(copy), true),
            (Given::Missing, Some(renewed), false),
            (Given::New, None, true),
        ] {
            assert_eq!(Tokens { given, kept }.may_use_given(), expected, "{given:?} {kept:?}");
        }
    }
}
