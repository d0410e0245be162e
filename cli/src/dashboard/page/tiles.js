// A tile for each node, by pool, wave and zone. Only changed tiles are touched: there may be thousands of them.

import { byId, el, setAttribute, setText } from "./dom.js";
import { fit } from "./fit.js";
import { stateWords, symbol } from "./looks.js";
import { byName } from "./sort.js";
import { waveCounts, waveKey } from "./waves.js";
import { age, left, span } from "./words.js";

/** Tiles that are built in one frame. */
const AT_ONCE = 500;

const root = byId("tiles");
/** True if the tiles have their own panel beside the list, with a height that does not depend on them. */
const beside = matchMedia("(min-width: 62rem)");
/** Each zone of a wave: its row element, its cells and its tiles in the order of their names. */
let groups = [];
/** Tile and group of each node. */
const places = new Map();
let order = new Map();
let matches = () => true;
let store = null;
let focused = null;
/** Node in the line above the tiles. */
let peeked = null;
/** Number of the newest build; older ones end. */
let building = 0;

/** Makes the tiles react to pointer and keyboard; `open` gets the name of a node to open. */
export function listenToTiles(open) {
  const nameOf = (event) => event.target.closest?.("[data-node]")?.dataset.node;
  root.addEventListener("click", (event) => nameOf(event) && open(nameOf(event)));
  root.addEventListener("pointerover", (event) => peek(nameOf(event)));
  root.addEventListener("focusin", (event) => {
    setFocus(nameOf(event));
    peek(nameOf(event));
  });
  root.addEventListener("keydown", (event) => {
    const name = nameOf(event);
    if (name && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      open(name);
    } else if (name && !event.ctrlKey && !event.metaKey && !event.altKey) {
      move(event, name);
    }
  });
  new ResizeObserver(() => requestAnimationFrame(size)).observe(root.parentElement);
}

/** Shows a changed filter: tiles that do not match are dimmed, so that the picture stays in place. */
export function filterTiles(predicate) {
  matches = predicate;
  for (const [name, { tile }] of places) {
    tile.classList.toggle("dim", !matches(store.nodes.get(name)));
  }
}

/** Shows the changes of the store. */
export function showTiles(from, changes) {
  store = from;
  showPeek();
  const isReordered = (changes.all || changes.pools) && setOrder();
  if (isReordered || changes.all && places.size === 0) {
    build();
    return;
  }
  // After a reconnect, a whole state arrives. Only its differences are drawn, so that focus and scroll position stay.
  const gone = changes.all ? [...places.keys()].filter((name) => !store.nodes.has(name)) : changes.gone;
  const changed = changes.all ? store.nodes.keys() : changes.nodes;
  let isResized = false;
  for (const name of gone) {
    isResized = remove(name) || isResized;
  }
  for (const name of changed) {
    isResized = update(store.nodes.get(name)) || isResized;
  }
  if (changes.all || changes.pools || changes.nodes.size > 0 || changes.gone.size > 0) {
    labelWaves();
  }
  if (isResized) {
    size();
  }
}

/** Moves the focus to the tile of a node. Returns false if there is no such tile. */
export function focusTile(name) {
  const place = places.get(name);
  place?.tile.focus();
  return Boolean(place);
}

/** Builds all tiles again, some of them in each frame. */
function build() {
  const hadFocus = root.contains(document.activeElement);
  places.clear();
  groups = [];
  root.replaceChildren();
  // All headings are there before the first tile, so that the tiles need not change their size later.
  for (const node of store.nodes.values()) {
    groupOf(node);
  }
  labelWaves();
  size();
  const names = [...store.nodes.keys()].sort(byName);
  building += 1;
  buildSome(names, building, hadFocus);
}

/** Builds the next tiles. Names that went away or got a tile in the meantime are skipped. */
function buildSome(names, build, hadFocus) {
  if (build !== building) {
    return;
  }
  const labelled = new Set();
  for (const name of names.splice(0, AT_ONCE)) {
    const node = store.nodes.get(name);
    if (node && !places.has(name)) {
      labelled.add(place(node, newTile(node)));
    }
  }
  labelled.forEach(label);
  if (names.length > 0) {
    requestAnimationFrame(() => buildSome(names, build, hadFocus));
    return;
  }
  // Nodes may have gone or moved before they had a tile.
  [...groups].forEach(dropIfEmpty);
  size();
  setFocus(places.has(focused) ? focused : firstName());
  if (hadFocus) {
    focusTile(focused);
  }
}

/**
 * Ranks the waves: they have the order of the pools' specs. Pools are ordered by name, since the order of the store
 * follows their states, and tiles should stay in place. Returns true if the order has changed.
 */
function setOrder() {
  const before = JSON.stringify([...order].sort());
  order = new Map();
  store.pools.forEach((pool) => {
    (pool.waves ?? []).forEach((wave, at) => order.set(waveKey(pool.name, wave.name), at));
  });
  return JSON.stringify([...order].sort()) !== before;
}

function rank(key) {
  return order.get(key) ?? Infinity;
}

function compareGroups(a, b) {
  // Nodes without a pool come last.
  const ofPools = Number(a.pool === "") - Number(b.pool === "") || byName(a.pool, b.pool);
  const ofWaves = rank(waveKey(a.pool, a.wave)) - rank(waveKey(b.pool, b.wave)) || byName(a.wave, b.wave);
  return ofPools || ofWaves || byName(a.zone, b.zone);
}

/** Returns the group of a node and creates it if necessary. */
function groupOf(node) {
  const { pool, wave, zone } = node;
  const found = groups.find((group) => group.pool === pool && group.wave === wave && group.zone === zone);
  return found ?? newGroup({ pool, wave, zone });
}

function newGroup({ pool, wave, zone }) {
  const head = el("span", { class: "zone-name", role: "rowheader" });
  const cells = el("div", { class: "cells", role: "none" });
  const row = el("div", { class: "zone", role: "row" }, head, cells);
  const group = { pool, wave, zone, head, cells, row, names: [] };
  const at = groups.findIndex((other) => compareGroups(group, other) < 0);
  groups.splice(at < 0 ? groups.length : at, 0, group);
  const grid = gridOf(group);
  const next = groups.slice(groups.indexOf(group) + 1).find((other) => other.row.parentElement === grid);
  grid.insertBefore(row, next?.row ?? null);
  label(group);
  return group;
}

/** Returns the grid of a group's wave and creates it if necessary. */
function gridOf({ pool, wave }) {
  const sections = [...root.children];
  const found = sections.find((section) => section.dataset.ofPool === pool && section.dataset.wave === wave);
  if (found) {
    return found.lastElementChild;
  }
  const title = el("h4", {}, el("span", { class: "name" }), el("span", { class: "quiet" }));
  const grid = el("div", { class: "zones", role: "grid" });
  const section = el("section", { class: "wave", "data-of-pool": pool, "data-wave": wave }, title, grid);
  const later = sections.find((other) => compareGroups({ pool, wave, zone: "" },
    { pool: other.dataset.ofPool, wave: other.dataset.wave, zone: "" }) < 0);
  root.insertBefore(section, later ?? null);
  return grid;
}

/** Labels all waves. */
function labelWaves() {
  const counts = waveCounts(store.nodes);
  for (const section of root.children) {
    labelWave(section, counts.get(waveKey(section.dataset.ofPool, section.dataset.wave)));
  }
}

function labelWave(section, { updated, total } = { updated: 0, total: 0 }) {
  const { ofPool, wave } = section.dataset;
  const pool = store.pools.find((one) => one.name === ofPool);
  const view = pool?.waves?.find((one) => one.name === wave);
  const name = ofPool === "" ? "Nodes without a pool" : ofPool + (wave ? ` · ${wave}` : "");
  const [title, grid] = section.children;
  setText(title.firstElementChild, name);
  const state = view ? `, ${stateOf(view)}` : "";
  setText(title.lastElementChild, pool ? `${updated} of ${total} updated${state}` : "");
  setAttribute(grid, "aria-label", `Tiles of ${name}`);
}

function stateOf(wave) {
  const soak = wave.state === "Soaking" ? ` ${span(wave.soakedSeconds)} of ${span(wave.soakSeconds)}` : "";
  return wave.state.toLowerCase() + soak;
}

function label(group) {
  setText(group.head, `${group.zone || "no zone"} · ${group.names.length}`);
}

function newTile(node) {
  const tile = el("div", { role: "gridcell", class: "tile", tabindex: "-1", "data-node": node.name });
  paint(tile, node);
  return tile;
}

function paint(tile, node) {
  setAttribute(tile, "data-phase", node.phase);
  setAttribute(tile, "data-assessment", node.assessment ?? "None");
  setAttribute(tile, "data-mark", symbol(node));
  setAttribute(tile, "aria-label", `${node.name}, ${stateWords(node)}`);
  const isDim = !matches(node);
  if (tile.classList.contains("dim") !== isDim) {
    tile.classList.toggle("dim", isDim);
  }
}

/** Shows a changed or new node. Returns true if tiles were added or moved. */
function update(node) {
  const place = places.get(node.name);
  const { group } = place ?? {};
  if (group && group.pool === node.pool && group.wave === node.wave && group.zone === node.zone) {
    paint(place.tile, node);
    return false;
  }
  const hadFocus = place?.tile === document.activeElement;
  if (place) {
    remove(node.name);
  }
  insert(node, place?.tile ?? newTile(node));
  if (hadFocus) {
    focusTile(node.name);
  }
  return true;
}

function insert(node, tile) {
  label(place(node, tile));
  paint(tile, node);
  if (focused === null) {
    setFocus(node.name);
  }
}

/** Puts a tile into its group and returns the group. */
function place(node, tile) {
  const group = groupOf(node);
  const { names } = group;
  const at = position(names, node.name);
  group.cells.insertBefore(tile, at < names.length ? places.get(names[at]).tile : null);
  names.splice(at, 0, node.name);
  places.set(node.name, { tile, group });
  return group;
}

/** Returns where a name belongs among sorted names. The end is tried first, because tiles are built in order. */
function position(names, name) {
  let low = names.length > 0 && byName(names.at(-1), name) < 0 ? names.length : 0;
  let high = names.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (byName(names[middle], name) < 0) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

function remove(name) {
  const place = places.get(name);
  if (!place) {
    return false;
  }
  const { tile, group } = place;
  tile.remove();
  places.delete(name);
  group.names.splice(group.names.indexOf(name), 1);
  label(group);
  dropIfEmpty(group);
  if (focused === name) {
    setFocus(firstName());
  }
  return true;
}

/** Removes a zone without tiles, and its wave if no zone is left. */
function dropIfEmpty(group) {
  if (group.names.length > 0) {
    return;
  }
  groups.splice(groups.indexOf(group), 1);
  const wave = group.row.closest(".wave");
  group.row.remove();
  if (wave.lastElementChild.childElementCount === 0) {
    wave.remove();
  }
}

function firstName() {
  return groups[0]?.names[0] ?? null;
}

/** Makes one tile the tab stop. */
function setFocus(name) {
  if (!name) {
    focused = null;
    return;
  }
  places.get(focused)?.tile.setAttribute("tabindex", "-1");
  focused = name;
  places.get(name)?.tile.setAttribute("tabindex", "0");
}

/** Sets the size of all tiles so that they fill the panel but fit into it, if they can. */
function size() {
  // A view that is hidden has no size; it is measured when it is shown.
  if (!store || store.nodes.size === 0 || root.offsetWidth === 0) {
    return;
  }
  const numbers = numbersInGroups();
  const grids = [...root.querySelectorAll(".zones")];
  const waves = grids.map((grid) => [...grid.children].map((row) => numbers.get(row) ?? 0));
  const { tile, columns } = fit(waves, measure(grids));
  setAttribute(root, "data-size", tile.size);
  root.style.setProperty("--tile-width", `${tile.width}px`);
  root.style.setProperty("--tile-height", `${tile.height}px`);
  root.style.setProperty("--gap", `${tile.gap}px`);
  grids.forEach((grid, at) => grid.style.setProperty("--zones", columns[at]));
}

/** Returns the number of nodes in the row of each zone. Counts nodes whose tiles are not built yet, and creates their rows. */
function numbersInGroups() {
  const numbers = new Map();
  for (const node of store.nodes.values()) {
    const { row } = groupOf(node);
    numbers.set(row, (numbers.get(row) ?? 0) + 1);
  }
  return numbers;
}

/** Measures the space for tiles, as `fit` needs it. */
function measure(grids) {
  const style = getComputedStyle(root);
  const ofGrid = getComputedStyle(grids[0]);
  const px = Number.parseFloat;
  const titles = [...root.querySelectorAll("h4")].map((title) => title.getBoundingClientRect().height);
  return {
    rem: px(getComputedStyle(document.documentElement).fontSize),
    // Without the scrollbar of tiles that do not fit yet.
    width: root.getBoundingClientRect().width - px(style.paddingLeft) - px(style.paddingRight),
    // One pixel less: the browser rounds heights.
    height: (beside.matches ? root.clientHeight : innerHeight) - px(style.paddingTop) - px(style.paddingBottom) - 1,
    fixed: titles.reduce((sum, height) => sum + height, (titles.length - 1) * px(style.rowGap)),
    head: groups[0].head.getBoundingClientRect().height,
    zoneGap: { x: px(ofGrid.columnGap), y: px(ofGrid.rowGap) },
    scrolls: !beside.matches,
  };
}

/** Moves the focus by an arrow key, Home or End. */
function move(event, name) {
  const { group } = places.get(name);
  const at = group.names.indexOf(name);
  const columns = getComputedStyle(group.cells).gridTemplateColumns.split(" ").length;
  const target = {
    ArrowRight: () => step(group, at, 1),
    ArrowLeft: () => step(group, at, -1),
    ArrowDown: () => rowStep(group, at, columns),
    ArrowUp: () => rowStep(group, at, -columns),
    Home: () => firstName(),
    End: () => groups.at(-1).names.at(-1),
  }[event.key]?.();
  if (target) {
    event.preventDefault();
    focusTile(target);
  }
}

/** Returns the next or previous node, if necessary of the next or previous group. */
function step(group, at, by) {
  const inGroup = group.names[at + by];
  const other = groups[groups.indexOf(group) + by];
  return inGroup ?? (by > 0 ? other?.names[0] : other?.names.at(-1));
}

/** Returns the node one row below or above. Beyond the last row of a group: the first node of the next group. */
function rowStep(group, at, by) {
  const inGroup = group.names[at + by];
  if (inGroup !== undefined) {
    return inGroup;
  }
  const isBelow = by > 0;
  const rest = group.names.length - 1 - at;
  const isLastRow = Math.floor(at / Math.abs(by)) === Math.floor((group.names.length - 1) / Math.abs(by));
  if (isBelow && rest > 0 && !isLastRow) {
    return group.names.at(-1);
  }
  const other = groups[groups.indexOf(group) + Math.sign(by)];
  return isBelow ? other?.names[0] : other?.names.at(-1);
}

/** Shows the present state of the node in the line above the tiles. */
export function showPeek() {
  peek(peeked);
}

/** Shows one line about a node: under the pointer, or with the focus. */
function peek(name) {
  const node = name && store?.nodes.get(name);
  if (!node) {
    return;
  }
  peeked = name;
  const since = age(node.since, Date.now());
  const parts = [
    node.name, stateWords(node) + (since ? ` for ${since}` : ""), node.progress, left(node.estimate),
    node.version && node.target && node.version !== node.target ? `${node.version} → ${node.target}` : node.version,
    node.message,
  ];
  setText(byId("peek"), parts.filter(Boolean).join(" · "));
}
