//! Decides which requests the dashboard answers. Other programs and other users of this machine can reach its port, and
//! so can web pages in the admin's browser. Does no I/O.

use ring::rand::{SecureRandom, SystemRandom};

/// Bytes of the token and of the session's secret.
const SECRET_BYTES: usize = 32;

/// Parts of a request that access depends on.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Asked<'a> {
    /// Header `Host`; `None` if it is missing or not text.
    pub(super) host: Option<&'a str>,
    /// Method, such as `GET`.
    pub(super) method: &'a str,
    /// Path, without the query.
    pub(super) path: &'a str,
    /// The query's parameter `token`.
    pub(super) token: Option<&'a str>,
}

/// Decision about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Access {
    /// The request may be answered.
    Granted,
    /// The token is right: set this cookie, and lead the browser to `/`.
    LogIn(String),
    /// The token is right, but the method uses up nothing. Answer without content.
    Unused,
    /// The request is for another host, such as a name that points to this machine.
    ForeignHost,
    /// The method is neither GET nor HEAD.
    WrongMethod,
    /// The token is wrong, or was used before.
    WrongToken,
    /// The cookie is missing or wrong.
    NoCookie,
}

/// Secrets of one run of the dashboard.
#[derive(Debug)]
pub(super) struct Keeper {
    port: u16,
    /// `None` after it was used.
    token: Option<String>,
    session: String,
}

impl Keeper {
    /// Creates random secrets for a dashboard on this port. Returns them with the token. `None` if the operating system
    /// provides no random bytes.
    pub(super) fn new(port: u16) -> Option<(Self, String)> {
        let (token, session) = (secret()?, secret()?);
        let this = Self {
            port,
            token: Some(token.clone()),
            session,
        };
        Some((this, token))
    }

    /// Decides about a request. `cookies`: the values of all headers `Cookie`.
    pub(super) fn judge(&mut self, asked: Asked<'_>, cookies: &[&str]) -> Access {
        if !self.is_own_host(asked.host) {
            return Access::ForeignHost;
        }
        if !matches!(asked.method, "GET" | "HEAD") {
            return Access::WrongMethod;
        }
        if let (Some(token), "/") = (asked.token, asked.path) {
            return self.log_in(token, asked.method);
        }
        if self.has_session(cookies) {
            Access::Granted
        } else {
            Access::NoCookie
        }
    }

    fn log_in(&mut self, token: &str, method: &str) -> Access {
        let is_right = self.token.as_deref().is_some_and(|right| is_same(right, token));
        if !is_right {
            return Access::WrongToken;
        }
        // A browser or a chat program may look at an address before the admin opens it.
        if method == "HEAD" {
            return Access::Unused;
        }
        self.token = None;
        Access::LogIn(format!(
            "{}={}; HttpOnly; SameSite=Strict; Path=/",
            self.cookie_name(),
            self.session
        ))
    }

    /// True if the header names this machine and the dashboard's port. A web page whose host name points to this machine
    /// sends its own host name.
    fn is_own_host(&self, host: Option<&str>) -> bool {
        let Some(host) = host else { return false };
        ["127.0.0.1", "localhost"].iter().any(|name| {
            let is_usual_port = self.port == 80 && host == *name;
            is_usual_port || host == format!("{name}:{}", self.port)
        })
    }

    /// Returns the name of the cookie. All ports of a machine share their cookies, so the name has the port.
    fn cookie_name(&self) -> String {
        format!("berth-{}", self.port)
    }

    fn has_session(&self, cookies: &[&str]) -> bool {
        let name = self.cookie_name();
        let mut pairs = cookies.iter().flat_map(|header| header.split(';'));
        pairs.any(|pair| {
            let (of, value) = pair.trim().split_once('=').unwrap_or_default();
            of == name && is_same(&self.session, value)
        })
    }
}

/// Returns 256 random bits as text. `None` if the operating system provides no random bytes.
pub(super) fn secret() -> Option<String> {
    let mut bytes = [0; SECRET_BYTES];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Compares in a time that does not depend on the first difference.
fn is_same(right: &str, given: &str) -> bool {
    let pairs = right.bytes().zip(given.bytes());
    let difference = pairs.fold(0, |found, (a, b)| std::hint::black_box(found | (a ^ b)));
    right.len() == given.len() && difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: Option<&str> = Some("127.0.0.1:8080");

    fn get(path: &str) -> Asked<'_> {
        Asked {
            host: HOST,
            method: "GET",
            path,
            token: None,
        }
    }

    fn with<'a>(token: &'a str, method: &'a str) -> Asked<'a> {
        Asked {
            method,
            token: Some(token),
            ..get("/")
        }
    }

    fn keeper() -> (Keeper, String) {
        Keeper::new(8080).unwrap()
    }

    fn cookie(access: Access) -> String {
        let Access::LogIn(cookie) = access else {
            panic!("{access:?}");
        };
        cookie
    }

    #[test]
    fn a_token_works_once() {
        let (mut keeper, token) = keeper();
        assert_eq!(token.len(), 64);
        assert_eq!(keeper.judge(with(&token, "HEAD"), &[]), Access::Unused);
        let set = cookie(keeper.judge(with(&token, "GET"), &[]));
        assert!(set.starts_with("berth-8080="), "{set}");
        assert!(set.ends_with("; HttpOnly; SameSite=Strict; Path=/"), "{set}");
        assert!(!set.contains(&token), "the session has a secret of its own");
        for method in ["GET", "HEAD"] {
            assert_eq!(keeper.judge(with(&token, method), &[]), Access::WrongToken);
        }
        let sent = set.split(';').next().unwrap();
        for cookies in [&[sent][..], &["a=b", sent], &[&format!("x=y;{sent} ; z")]] {
            assert_eq!(
                keeper.judge(get("/api/events"), cookies),
                Access::Granted,
                "{cookies:?}"
            );
        }
    }

    #[test]
    fn a_wrong_token_does_not_use_up_the_right_one() {
        let (mut keeper, token) = keeper();
        let almost = format!("{}{}", &token[..63], if token.ends_with('0') { '1' } else { '0' });
        for wrong in ["", "x", &token[..63], &format!("{token}0"), &almost] {
            assert_eq!(keeper.judge(with(wrong, "GET"), &[]), Access::WrongToken, "{wrong}");
        }
        let elsewhere = Asked {
            path: "/api/events",
            ..with(&token, "GET")
        };
        assert_eq!(keeper.judge(elsewhere, &[]), Access::NoCookie, "only / takes the token");
        cookie(keeper.judge(with(&token, "GET"), &[]));
    }

    #[test]
    fn everything_else_needs_the_cookie() {
        let (mut keeper, token) = keeper();
        let set = cookie(keeper.judge(with(&token, "GET"), &[]));
        let value = set.split(['=', ';']).nth(1).unwrap();
        for cookies in [
            vec![],
            vec!["berth-8080".to_owned()],
            vec!["berth-8080=".to_owned()],
            vec![format!("berth-8081={value}")],
            vec![format!("berth-8080={value}0")],
            vec![format!("berth-8080={token}")],
        ] {
            let cookies: Vec<&str> = cookies.iter().map(String::as_str).collect();
            for path in ["/", "/assets/app.js", "/api/events", "/favicon.ico"] {
                assert_eq!(
                    keeper.judge(get(path), &cookies),
                    Access::NoCookie,
                    "{path} {cookies:?}"
                );
            }
        }
    }

    #[test]
    fn only_this_machines_names_are_hosts() {
        let (mut keeper, _) = keeper();
        for own in ["127.0.0.1:8080", "localhost:8080"] {
            let asked = Asked {
                host: Some(own),
                ..get("/")
            };
            assert_eq!(keeper.judge(asked, &[]), Access::NoCookie, "{own}");
        }
        for foreign in [
            None,
            Some(""),
            Some("127.0.0.1"),
            Some("127.0.0.1:8081"),
            Some("localhost"),
            Some("localhost:8080."),
            Some("evil.example:8080"),
            Some("[::1]:8080"),
            Some("127.0.0.1:8080, evil.example"),
        ] {
            let asked = Asked {
                host: foreign,
                ..get("/")
            };
            assert_eq!(keeper.judge(asked, &[]), Access::ForeignHost, "{foreign:?}");
        }
        let (mut usual, _) = Keeper::new(80).unwrap();
        let asked = Asked {
            host: Some("localhost"),
            ..get("/")
        };
        assert_eq!(usual.judge(asked, &[]), Access::NoCookie, "browsers leave out port 80");
    }

    #[test]
    fn other_methods_are_refused() {
        let (mut keeper, token) = keeper();
        for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "get"] {
            assert_eq!(keeper.judge(with(&token, method), &[]), Access::WrongMethod, "{method}");
        }
        cookie(keeper.judge(with(&token, "GET"), &[]));
    }
}
