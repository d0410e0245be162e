//! Reads strings that ostree prints in GVariant text format.

use anyhow::{Result, bail};

/// The string inside `'…'` or `"…"`, with escapes resolved.
pub(crate) fn unquote(text: &str) -> Result<String> {
    let text = text.trim();
    let mut chars = text.chars();
    let Some(quote @ ('\'' | '"')) = chars.next() else {
        bail!("not a quoted string: {text}");
    };
    let mut out = String::with_capacity(text.len());
    while let Some(c) = chars.next() {
        match c {
            c if c == quote => return Ok(out),
            '\\' => out.push(escaped(&mut chars)?),
            c => out.push(c),
        }
    }
    bail!("a string without an end: {text}")
}

fn escaped(chars: &mut std::str::Chars<'_>) -> Result<char> {
    Ok(match chars.next() {
        Some('n') => '\n',
        Some('t') => '\t',
        Some('r') => '\r',
        Some('a') => '\u{7}',
        Some('b') => '\u{8}',
        Some('f') => '\u{c}',
        Some('v') => '\u{b}',
        Some('u') => unicode(chars, 4)?,
        Some('U') => unicode(chars, 8)?,
        Some(c) => c,
        None => bail!("a backslash at the end of a string"),
    })
}

fn unicode(chars: &mut std::str::Chars<'_>, digits: usize) -> Result<char> {
    let hex: String = chars.take(digits).collect();
    let code = u32::from_str_radix(&hex, 16)?;
    match char::from_u32(code) {
        Some(c) => Ok(c),
        None => bail!("\\u{hex} is no character"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_read_as_glib_prints_them() {
        assert_eq!(unquote("'sha256:ab'\n").unwrap(), "sha256:ab");
        assert_eq!(unquote(r#"'{"a":"b\\n"}'"#).unwrap(), r#"{"a":"b\n"}"#);
        assert_eq!(unquote(r#""it's \"x\"""#).unwrap(), r#"it's "x""#);
        assert_eq!(unquote(r"'\u00e9\t'").unwrap(), "é\t");
        assert!(unquote("sha256:ab").is_err());
        assert!(unquote("'open").is_err());
    }
}
