//! Makes text of tools, registries and other programs fit to print: one line, without control characters, without
//! characters that change how a line reads, and without credentials.

/// Longest message that is stored, in characters, without the ellipsis that marks a cut. The schema of `Condition`
/// allows 32768.
pub const MAX_MESSAGE: usize = 1024;

/// Stands for a part of a text that may be a credential.
const HIDDEN: &str = "***";

/// Parts of the names of query parameters whose values may be credentials, such as `X-Amz-Signature`, `access_token`
/// and `sig`.
const SECRET_NAMES: [&str; 8] = ["auth", "credential", "key", "pass", "policy", "secret", "sig", "token"];

/// Shortest word after `Bearer` or `Basic` that counts as a credential. Shorter ones are parts of a sentence.
const MIN_TOKEN: usize = 16;

/// Returns the text as one line: line breaks, tabs and other control characters become spaces. Invisible characters,
/// such as those that change the direction of text, are removed. So are credentials, as by [`scrubbed`].
pub fn line(text: &str) -> String {
    let visible = printable(text);
    let words: Vec<&str> = visible.split_whitespace().collect();
    scrubbed(&words.join(" "))
}

/// Returns the text as one [`line`] of at most `most` characters.
pub fn bounded(text: &str, most: usize) -> String {
    line(text).chars().take(most).collect()
}

/// Returns the text as one [`line`]. A result longer than [`MAX_MESSAGE`] characters is cut and ends with an ellipsis.
pub fn one_line(text: &str) -> String {
    let line = line(text);
    match line.char_indices().nth(MAX_MESSAGE) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

/// Replaces control characters by spaces and removes invisible characters.
pub fn printable(text: &str) -> String {
    // Control characters separate words too, because some tools write terminal colors into their logs.
    let visible = text.chars().filter(|c| !is_invisible(*c));
    visible.map(|c| if is_break(c) { ' ' } else { c }).collect()
}

fn is_break(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}

/// True for invisible characters: marks that change the direction of text, and characters without a width that make two
/// texts look the same.
pub fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

/// True if the text is one line that shows all of its characters.
pub fn is_printable(text: &str) -> bool {
    !text.contains(|c| is_break(c) || is_invisible(c))
}

/// Removes credentials: the user and password of a URL, the values of query parameters whose names suggest a
/// credential, such as the signature of a download, and the value of an `Authorization` header.
pub fn scrubbed(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut before = Before::Anything;
    for (index, word) in text.split(' ').enumerate() {
        if index > 0 {
            out.push(' ');
        }
        let (shown, next) = scrub(word, before);
        out.push_str(&shown);
        before = next;
    }
    out
}

/// Kind of word that the words so far announce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Anything,
    /// The header `Authorization`: its scheme or its value follows.
    Header,
    /// The scheme of an `Authorization` header: its value follows.
    Scheme,
    /// The word `Bearer` or `Basic`, which a token may follow.
    MaybeScheme,
}

/// Removes credentials from a word. Also returns what the word announces.
fn scrub(word: &str, before: Before) -> (String, Before) {
    if word.is_empty() {
        return (String::new(), before);
    }
    let lower = word.to_ascii_lowercase();
    let bare = lower.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    let is_usual = matches!(bare, "bearer" | "basic");
    let is_scheme = is_usual || matches!(bare, "negotiate" | "token");
    let next = match before {
        Before::Header if is_scheme => Before::Scheme,
        _ if lower.ends_with("authorization:") || lower.ends_with("authorization\":") => Before::Header,
        _ if is_usual => Before::MaybeScheme,
        _ => Before::Anything,
    };
    let shown = match before {
        Before::Header if is_scheme => word.to_owned(),
        Before::Header | Before::Scheme => without_token(&without_credentials(word), 1),
        Before::MaybeScheme => without_token(&without_credentials(word), MIN_TOKEN),
        Before::Anything => without_credentials(word),
    };
    (shown, next)
}

/// Replaces the first run of a token's characters if it has at least this length. An asterisk counts as such a character,
/// so a hidden token stays as it is.
fn without_token(word: &str, least: usize) -> String {
    fn is_part(c: char) -> bool {
        c.is_ascii_alphanumeric() || "+/=._~-*".contains(c)
    }
    let start = word.find(is_part).unwrap_or(word.len());
    let (head, rest) = word.split_at(start);
    let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
    let (token, tail) = rest.split_at(end);
    if token.len() < least {
        return word.to_owned();
    }
    format!("{head}{HIDDEN}{tail}")
}

/// Removes credentials from the URLs in a word.
fn without_credentials(word: &str) -> String {
    let mut out = String::with_capacity(word.len());
    let mut rest = word;
    while let Some(at) = rest.find("://") {
        let (scheme, behind) = rest.split_at(at + 3);
        out.push_str(scheme);
        let end = behind.find(['"', '<', '>', '\\', '`']).unwrap_or(behind.len());
        let end = behind.get(..end).and_then(|url| url.find("://")).unwrap_or(end);
        let (url, tail) = behind.split_at(end);
        out.push_str(&without_user(&without_query(url)));
        rest = tail;
    }
    out.push_str(rest);
    out
}

/// Removes the user and password of a URL without its scheme.
fn without_user(url: &str) -> String {
    let end = url.find(['/', '?', '#']).unwrap_or(url.len());
    let (authority, path) = url.split_at(end);
    if let Some((_, host)) = authority.rsplit_once('@') {
        return format!("{HIDDEN}@{host}{path}");
    }
    // If the text after the last colon is not a number, it is not a port but a part of a password with a slash.
    let port = authority.rsplit_once(':').map(|(_, port)| port);
    let is_port = port.is_none_or(|port| port.ends_with(']') || port.bytes().all(|b| b.is_ascii_digit()));
    match path.rsplit_once('@') {
        Some((_, host)) if !is_port => format!("{HIDDEN}@{host}"),
        _ => url.to_owned(),
    }
}

/// Removes the values of query parameters whose names suggest a credential.
fn without_query(url: &str) -> String {
    let Some((path, query)) = url.split_once('?') else {
        return url.to_owned();
    };
    let parts: Vec<String> = query.split('&').map(parameter).collect();
    format!("{path}?{}", parts.join("&"))
}

fn parameter(part: &str) -> String {
    match part.split_once('=') {
        Some((name, _)) if is_secret(name) => format!("{name}={HIDDEN}"),
        _ => part.to_owned(),
    }
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_NAMES.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests;
