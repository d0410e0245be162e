// Calculates the largest size at which all tiles fit into their panel. Pure: the caller measures the page.

/** Smallest width of a zone, and size of a tile with its name, in `rem`. */
const NAMED = { zone: 11, width: 9.5, height: 2.2 };
/** Smallest width of a zone whose tiles have no names, in `rem`. */
const ZONE = 7;
/** Smallest width of a zone whose tiles are tiny, in `rem`. The name of the zone may be cut. */
const NARROW_ZONE = 4.5;
/** Up to this edge, in CSS pixels, tiles are tiny. */
const TINY = 5;
/** Smallest edge of a square tile, in CSS pixels. */
const LEAST = 3;
/** Smallest edge of a square tile on a page that scrolls, in CSS pixels. */
const LEAST_SCROLLED = 12;
/** Largest edge of a square tile, in CSS pixels. */
const MOST = 40;
/** From this edge on, tiles show symbols and have wide gaps; smaller tiles show patterns. */
const SYMBOLS = 13;
const WIDE_GAP = 3;
const GAP = 1;

/**
 * Returns the largest tile with which all nodes fit, and the number of zones in a row for each wave. If even the smallest
 * tile is too large, it is returned, and the tiles must be scrolled.
 *
 * `waves`: the number of nodes in each zone of each wave. `space`, in CSS pixels: `rem`; `width` and `height` of the panel
 * without padding; `fixed`, the height that headings of waves and gaps between waves take; `head`, the height of a zone's
 * heading; `zoneGap`, `{ x, y }` between zones; and whether the page `scrolls`, so that not all tiles must fit.
 */
export function fit(waves, space) {
  const tiles = sizes(space);
  const tile = tiles.find((one) => heightOf(waves, one, space) <= space.height) ?? tiles.at(-1);
  return { tile, columns: waves.map((zones) => zonesInRow(zones, tile, space)) };
}

/** Returns all sizes that a tile can have, from the largest to the smallest, in CSS pixels. */
function sizes({ rem, scrolls }) {
  const named = { size: "named", width: NAMED.width * rem, height: NAMED.height * rem, gap: WIDE_GAP };
  const all = [{ ...named, zone: NAMED.zone * rem }];
  for (let edge = MOST; edge >= (scrolls ? LEAST_SCROLLED : LEAST); edge -= 1) {
    const look = edge >= SYMBOLS ? { size: "symbol", gap: WIDE_GAP } : { size: "pattern", gap: GAP };
    all.push({ ...look, width: edge, height: edge, zone: (edge > TINY ? ZONE : NARROW_ZONE) * rem });
  }
  return all;
}

function zonesInRow(zones, tile, { width, zoneGap }) {
  return Math.max(1, Math.min(zones.length, columnsIn(width, tile.zone, zoneGap.x)));
}

function columnsIn(width, each, gap) {
  return Math.floor((width + gap) / (each + gap));
}

function heightOf(waves, tile, space) {
  return waves.reduce((sum, zones) => sum + heightOfWave(zones, tile, space), space.fixed);
}

/** Returns the height of a wave's zones. The tallest zone of a row sets its height. */
function heightOfWave(zones, tile, space) {
  const { width, head, zoneGap } = space;
  const columns = zonesInRow(zones, tile, space);
  const widthOfZone = (width - (columns - 1) * zoneGap.x) / columns;
  const inRow = Math.max(1, columnsIn(widthOfZone, tile.width, tile.gap));
  let height = -zoneGap.y;
  for (let first = 0; first < zones.length; first += columns) {
    const rows = Math.ceil(Math.max(...zones.slice(first, first + columns)) / inRow);
    height += zoneGap.y + head + rows * (tile.height + tile.gap) - tile.gap;
  }
  return height;
}
