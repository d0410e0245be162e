//! Smaller pictures: pages have few colours, so each pixel becomes an index into a palette.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::Cursor;

use anyhow::{Context, Result, ensure};
use png::{BitDepth, ColorType, Compression, Decoder, Encoder};

/// Bytes of a pixel in Chromium's pictures.
const RGB: usize = 3;
/// Largest palette.
const COLOURS: usize = 256;

type Colour = [u8; RGB];

/// Returns the same picture with a palette. If it has more colours than a palette can have, the rare ones become the nearest
/// frequent ones.
pub(super) fn shrink(picture: &[u8]) -> Result<Vec<u8>> {
    let mut reader = Decoder::new(Cursor::new(picture)).read_info()?;
    let size = reader.output_buffer_size().context("the picture is too large")?;
    let mut bytes = vec![0; size];
    let frame = reader.next_frame(&mut bytes)?;
    let form = (frame.color_type, frame.bit_depth);
    ensure!(
        form == (ColorType::Rgb, BitDepth::Eight),
        "not a picture as Chromium makes it: {form:?}"
    );
    let pixels = bytes.as_chunks::<RGB>().0;
    let (palette, indexes) = indexed(pixels)?;
    let mut small = vec![];
    let mut encoder = Encoder::new(&mut small, frame.width, frame.height);
    encoder.set_color(ColorType::Indexed);
    encoder.set_palette(palette.concat());
    encoder.set_compression(Compression::High);
    encoder.write_header()?.write_image_data(&indexes)?;
    Ok(small)
}

/// Returns a palette of the most frequent colours, and the index of each pixel's colour.
fn indexed(pixels: &[Colour]) -> Result<(Vec<Colour>, Vec<u8>)> {
    let mut counts: BTreeMap<Colour, usize> = BTreeMap::new();
    for pixel in pixels {
        *counts.entry(*pixel).or_default() += 1;
    }
    let mut colours: Vec<(Colour, usize)> = counts.into_iter().collect();
    colours.sort_by_key(|(colour, count)| (Reverse(*count), *colour));
    let palette: Vec<Colour> = colours.iter().take(COLOURS).map(|(colour, _)| *colour).collect();
    let mut places = BTreeMap::new();
    for (colour, _) in colours {
        places.insert(colour, nearest(&palette, colour)?);
    }
    let indexes = pixels.iter().filter_map(|pixel| places.get(pixel).copied()).collect();
    Ok((palette, indexes))
}

fn nearest(palette: &[Colour], colour: Colour) -> Result<u8> {
    let distance = |other: &Colour| -> u32 {
        let parts = other.iter().zip(colour);
        parts.map(|(a, b)| u32::from(a.abs_diff(b)).pow(2)).sum()
    };
    let found = (0..palette.len()).min_by_key(|index| distance(&palette[*index]));
    Ok(u8::try_from(found.context("the picture is empty")?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_palette_keeps_the_frequent_colours() {
        let mut pixels: Vec<Colour> = vec![[9, 9, 9]; 3];
        for red in 0..=255 {
            pixels.extend([[red, 200, 0], [red, 200, 0]]);
        }
        pixels.push([0, 0, 250]);
        let (palette, indexes) = indexed(&pixels).unwrap();
        assert_eq!((palette.len(), palette[0]), (COLOURS, [9, 9, 9]));
        assert_eq!((indexes.len(), indexes[0]), (pixels.len(), 0));
        assert_eq!(indexes[indexes.len() - 1], 0, "blue is nearest to grey");
        assert_eq!(nearest(&[[0, 0, 0], [200, 0, 0]], [150, 10, 0]).unwrap(), 1);
    }

    #[test]
    fn a_small_picture_has_the_same_size() {
        let mut picture = vec![];
        let mut encoder = Encoder::new(&mut picture, 2, 2);
        encoder.set_color(ColorType::Rgb);
        let mut writer = encoder.write_header().unwrap();
        writer
            .write_image_data(&[10, 20, 30, 10, 20, 30, 7, 7, 7, 10, 20, 30])
            .unwrap();
        writer.finish().unwrap();
        let small = shrink(&picture).unwrap();
        let mut reader = Decoder::new(Cursor::new(&small)).read_info().unwrap();
        let mut bytes = [0; 12];
        let frame = reader.next_frame(&mut bytes).unwrap();
        assert_eq!((frame.width, frame.height), (2, 2));
        assert_eq!(reader.info().palette.as_deref(), Some(&[10, 20, 30, 7, 7, 7][..]));
        assert!(shrink(b"GIF").is_err());
    }
}
