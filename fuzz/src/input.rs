//! Inputs that consist of an image reference and a file.

/// Splits an input into an image reference (its first line) and a file (everything after that line). `None` if the
/// first line is not a reference.
pub fn reference_and_file(data: &[u8]) -> Option<(berth_api::ImageRef, &[u8])> {
    let end = data.iter().position(|byte| *byte == b'\n')?;
    let (line, file) = data.split_at(end);
    let reference = std::str::from_utf8(line).ok()?.parse().ok()?;
    Some((reference, file))
}
