//! Parsing of ostree's output, and its refs for container images. Also used by the stand-in for bootc.

use anyhow::{Result, bail};

/// Commit metadata: manifest digest of the image that the commit was created from.
pub const META_DIGEST: &str = "ostree.manifest-digest";
/// Commit metadata: manifest of that image.
pub const META_MANIFEST: &str = "ostree.manifest";
/// Commit metadata: configuration of that image.
pub const META_CONFIG: &str = "ostree.container.image-config";

/// Ref of an image with this name in skopeo's syntax.
pub fn image_ref(skopeo_name: &str) -> String {
    format!("ostree/container/image/{}", escape(skopeo_name))
}

/// Ref of a layer.
pub fn layer_ref(digest: &str) -> String {
    format!("ostree/container/blob/{}", escape(digest))
}

/// Escapes a name for a ref: characters that refs do not allow become `_XX_` (hexadecimal), and so do adjacent slashes.
fn escape(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 16);
    let mut last = b'/';
    let mut bytes = name.bytes().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' => out.push(char::from(byte)),
            b'/' if last != b'/' && bytes.peek() != Some(&b'/') => out.push('/'),
            b'_' => out.push_str("__"),
            other => out.push_str(&format!("_{other:02X}_")),
        }
        last = byte;
    }
    out
}

/// Parses a string `'…'` or `"…"` in the text format of GVariant.
pub fn unquote(text: &str) -> Result<String> {
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
    bail!("unterminated string: {text}")
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
        None => bail!("backslash at the end of a string"),
    })
}

fn unicode(chars: &mut std::str::Chars<'_>, digits: usize) -> Result<char> {
    let hex: String = chars.take(digits).collect();
    let code = u32::from_str_radix(&hex, 16)?;
    match char::from_u32(code) {
        Some(c) => Ok(c),
        None => bail!("\\u{hex} is not a character"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_as_ostree_containers_are() {
        assert_eq!(layer_ref("sha256:ab"), "ostree/container/blob/sha256_3A_ab");
        assert_eq!(
            image_ref("docker://q.io/a_b/os:v1"),
            "ostree/container/image/docker_3A__2F__2F_q_2E_io/a__b/os_3A_v1"
        );
    }

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
