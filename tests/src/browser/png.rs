//! Smaller pictures: pages have few colours, so each pixel becomes an index into a palette.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use anyhow::{Context, Result, bail, ensure};
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};

const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";
/// Bytes of a pixel in Chromium's pictures.
const RGB: usize = 3;
/// Largest palette.
const COLOURS: usize = 256;

type Colour = [u8; RGB];

/// Returns the same picture with a palette. If it has more colours than a palette can have, the rare ones become the nearest
/// frequent ones.
pub(super) fn shrink(png: &[u8]) -> Result<Vec<u8>> {
    let (header, pixels) = decode(png)?;
    let mut counts: BTreeMap<Colour, usize> = BTreeMap::new();
    for pixel in &pixels {
        *counts.entry(*pixel).or_default() += 1;
    }
    let mut colours: Vec<(Colour, usize)> = counts.into_iter().collect();
    colours.sort_by_key(|(colour, count)| (std::cmp::Reverse(*count), *colour));
    let palette: Vec<Colour> = colours.iter().take(COLOURS).map(|(colour, _)| *colour).collect();
    let mut indexes = BTreeMap::new();
    for (colour, _) in colours {
        indexes.insert(colour, nearest(&palette, colour)?);
    }
    let mut rows = vec![];
    for row in pixels.chunks(header.width) {
        // Without a filter, which suits palettes.
        rows.push(0);
        rows.extend(row.iter().filter_map(|pixel| indexes.get(pixel)));
    }
    encode(&header, &palette, &rows)
}

fn nearest(palette: &[Colour], colour: Colour) -> Result<u8> {
    let distance = |other: &Colour| -> u32 {
        let parts = other.iter().zip(colour);
        parts.map(|(a, b)| u32::from(a.abs_diff(b)).pow(2)).sum()
    };
    let found = (0..palette.len()).min_by_key(|index| distance(&palette[*index]));
    Ok(u8::try_from(found.context("the picture is empty")?)?)
}

/// Size of a picture.
#[derive(Debug, Clone, Copy)]
struct Header {
    width: usize,
    height: usize,
}

/// Reads the pixels of a picture as Chromium writes it: eight bits for each colour, no transparency.
fn decode(png: &[u8]) -> Result<(Header, Vec<Colour>)> {
    let mut rest = png.strip_prefix(SIGNATURE).context("not a PNG")?;
    let (mut header, mut packed) = (None, vec![]);
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = usize::try_from(u32::from_be_bytes(*length))?;
        let (kind, after) = after.split_first_chunk::<4>().context("a chunk is cut")?;
        let (data, after) = after.split_at_checked(length).context("a chunk is cut")?;
        match kind {
            b"IHDR" => header = Some(read_header(data)?),
            b"IDAT" => packed.extend_from_slice(data),
            _ => {}
        }
        rest = after.get(4..).context("a chunk is cut")?;
    }
    let header = header.context("the PNG has no header")?;
    let mut rows = vec![];
    ZlibDecoder::new(packed.as_slice()).read_to_end(&mut rows)?;
    let length = header.width * RGB;
    ensure!(rows.len() == (length + 1) * header.height, "the PNG has another size");
    let mut above = vec![0; length];
    let mut pixels = vec![];
    for row in rows.chunks(length + 1) {
        let (filter, row) = row.split_first().context("an empty row")?;
        above = unfilter(*filter, row, &above)?;
        pixels.extend_from_slice(above.as_chunks::<RGB>().0);
    }
    Ok((header, pixels))
}

fn read_header(data: &[u8]) -> Result<Header> {
    let (width, rest) = data.split_first_chunk::<4>().context("the header is cut")?;
    let (height, rest) = rest.split_first_chunk::<4>().context("the header is cut")?;
    ensure!(rest == [8, 2, 0, 0, 0], "not a picture as Chromium writes it: {rest:?}");
    Ok(Header {
        width: usize::try_from(u32::from_be_bytes(*width))?,
        height: usize::try_from(u32::from_be_bytes(*height))?,
    })
}

/// Undoes the filter of a row.
fn unfilter(filter: u8, row: &[u8], above: &[u8]) -> Result<Vec<u8>> {
    let mut plain: Vec<u8> = Vec::with_capacity(row.len());
    for (at, byte) in row.iter().enumerate() {
        let before = at.checked_sub(RGB);
        let left = before.map_or(0, |at| plain[at]);
        let up = above[at];
        let corner = before.map_or(0, |at| above[at]);
        let guess = match filter {
            0 => 0,
            1 => left,
            2 => up,
            3 => left.midpoint(up),
            4 => paeth(left, up, corner),
            other => bail!("filter {other} does not exist"),
        };
        plain.push(byte.wrapping_add(guess));
    }
    Ok(plain)
}

/// The neighbour that is nearest to `left + up - corner`.
fn paeth(left: u8, up: u8, corner: u8) -> u8 {
    let guess = i16::from(left) + i16::from(up) - i16::from(corner);
    let distance = |value: u8| guess.abs_diff(i16::from(value));
    if distance(left) <= distance(up) && distance(left) <= distance(corner) {
        left
    } else if distance(up) <= distance(corner) {
        up
    } else {
        corner
    }
}

fn encode(header: &Header, palette: &[Colour], rows: &[u8]) -> Result<Vec<u8>> {
    let mut packed = ZlibEncoder::new(vec![], Compression::best());
    packed.write_all(rows)?;
    let mut size = vec![];
    size.extend(u32::try_from(header.width)?.to_be_bytes());
    size.extend(u32::try_from(header.height)?.to_be_bytes());
    size.extend([8, 3, 0, 0, 0]);
    let mut png = SIGNATURE.to_vec();
    for (kind, data) in [
        (b"IHDR", size),
        (b"PLTE", palette.concat()),
        (b"IDAT", packed.finish()?),
        (b"IEND", vec![]),
    ] {
        png.extend(u32::try_from(data.len())?.to_be_bytes());
        let mut sum = Crc::new();
        for part in [kind.as_slice(), &data] {
            sum.update(part);
            png.extend_from_slice(part);
        }
        png.extend(sum.sum().to_be_bytes());
    }
    Ok(png)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A picture of two rows of two pixels in true colours, with this filter in the second row.
    fn picture(filter: u8, second: [u8; 6]) -> Vec<u8> {
        let rows = [&[0, 10, 20, 30, 40, 50, 60][..], &[filter], &second].concat();
        let mut png = encode(&Header { width: 2, height: 2 }, &[], &rows).unwrap();
        // The colour type, and nothing else that the decoder reads.
        png[SIGNATURE.len() + 8 + 9] = 2;
        png
    }

    #[test]
    fn filters_are_undone() {
        for (filter, second, expected) in [
            (0, [1, 2, 3, 4, 5, 6], [[1, 2, 3], [4, 5, 6]]),
            (1, [1, 2, 3, 4, 5, 6], [[1, 2, 3], [5, 7, 9]]),
            (2, [1, 2, 3, 4, 5, 6], [[11, 22, 33], [44, 55, 66]]),
            (3, [1, 2, 3, 4, 5, 6], [[6, 12, 18], [27, 36, 45]]),
            (4, [1, 2, 3, 4, 5, 6], [[11, 22, 33], [44, 55, 66]]),
            (2, [255; 6], [[9, 19, 29], [39, 49, 59]]),
        ] {
            let (header, pixels) = decode(&picture(filter, second)).unwrap();
            assert_eq!((header.width, header.height), (2, 2));
            assert_eq!(pixels[2..], expected, "filter {filter}");
        }
        assert!(decode(b"GIF").is_err() && decode(&picture(5, [0; 6])).is_err());
    }

    #[test]
    fn a_palette_keeps_the_colours() {
        let small = shrink(&picture(0, [10, 20, 30, 7, 7, 7])).unwrap();
        assert!(small.starts_with(SIGNATURE));
        let palette = small.windows(4).position(|kind| kind == b"PLTE").unwrap();
        // The most frequent colour comes first.
        assert_eq!(small[palette + 4..palette + 7], [10, 20, 30]);
        assert_eq!(nearest(&[[0, 0, 0], [200, 0, 0]], [150, 10, 0]).unwrap(), 1);
    }
}
