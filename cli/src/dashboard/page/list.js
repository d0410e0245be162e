// The list of nodes: sorted, filtered, and virtual, so that only the visible rows are elements.

import { byId, el, setAttribute, setText } from "./dom.js";
import { symbol } from "./looks.js";
import { nameRanks, sorted } from "./sort.js";
import { age } from "./words.js";

const COLUMNS = [
  { name: "name", title: "Name" },
  { name: "assessment", title: "Assessment" },
  { name: "phase", title: "Phase" },
  { name: "version", title: "Version" },
  { name: "estimate", title: "Left" },
  { name: "since", title: "Since" },
  { name: "wave", title: "Wave" },
  { name: "zone", title: "Zone" },
  { name: "message", title: "Message" },
];

/** Rows above and below the visible ones, so that scrolling shows no gaps. */
const SPARE = 6;
/** Shortest time between two sorts because of changes, so that rows do not jump. */
const SORT_MS = 1000;
/** Widths of the list in `rem` below which a row has two lines, and below which it has fewer columns. */
const NARROW = 58;
const MEDIUM = 68;

const list = byId("list");
const head = el("div", { class: "head", role: "row" });
const body = el("div", { class: "rows", role: "rowgroup" });
const slots = [];
let store = null;
let nodes = [];
let column = "assessment";
let isDescending = false;
let matches = () => true;
/** Rank of each node's name; empty if it must be computed again. */
let ranks = new Map();
let active = null;
let height = 32;
let view = { top: 0, height: 0 };
let sortTimer = null;

/** Builds the list; `open` gets the name of a node to open. */
export function buildList(open) {
  setAttribute(list, "aria-colcount", String(COLUMNS.length));
  for (const { name, title } of COLUMNS) {
    const button = el("button", { type: "button", "data-sort": name, tabindex: "0" }, title);
    button.addEventListener("click", () => sortBy(name));
    head.append(el("div", { role: "columnheader", class: `c-${name}`, "aria-colindex": indexOf(name) }, button));
  }
  list.append(el("div", { role: "rowgroup", class: "heads" }, head), body);
  list.addEventListener("scroll", () => requestAnimationFrame(scrolled), { passive: true });
  list.addEventListener("keydown", (event) => pressed(event, open));
  body.addEventListener("click", (event) => {
    const name = event.target.closest(".row")?.dataset.row;
    if (name) {
      setActive(name);
      open(name);
    }
  });
  new ResizeObserver(() => requestAnimationFrame(measure)).observe(list);
  showHeads();
}

/** Shows only the nodes that match. */
export function filterList(predicate) {
  matches = predicate;
  list.scrollTop = 0;
  sort();
}

/** Shows the changes of the store: texts at once, the order at most once a second. */
export function showList(from, changes) {
  store = from;
  if (changes.all || changes.gone.size > 0 || [...changes.nodes].some((name) => !ranks.has(name))) {
    ranks = new Map();
  }
  if (changes.all) {
    sort();
  } else if (changes.nodes.size > 0 || changes.gone.size > 0) {
    nodes = nodes.map((node) => store.nodes.get(node.name) ?? node);
    sortTimer ??= setTimeout(sort, SORT_MS);
    showRows();
  }
}

/** Shows the ages of the visible rows. */
export function showAges() {
  showRows();
}

/** Moves the focus to the row of a node. Returns false if the list does not have it. */
export function focusRow(name) {
  const isListed = nodes.some((node) => node.name === name);
  if (isListed) {
    setActive(name);
    list.focus();
  }
  return isListed;
}

/** Returns the number of a column. A narrow list leaves out some cells, so they cannot be counted. */
function indexOf(name) {
  return String(COLUMNS.findIndex((one) => one.name === name) + 1);
}

function sortBy(name) {
  isDescending = name === column && !isDescending;
  column = name;
  showHeads();
  sort();
}

function showHeads() {
  for (const cell of head.children) {
    const isSorted = cell.firstElementChild.dataset.sort === column;
    setAttribute(cell, "aria-sort", isSorted ? (isDescending ? "descending" : "ascending") : null);
  }
}

function sort() {
  clearTimeout(sortTimer);
  sortTimer = null;
  if (store) {
    ranks = ranks.size > 0 ? ranks : nameRanks(store.nodes.keys());
    nodes = sorted([...store.nodes.values()].filter(matches), column, isDescending, ranks);
    setAttribute(list, "aria-rowcount", String(nodes.length + 1));
    body.style.height = `${nodes.length * height}px`;
    const none = store.nodes.size === 0 ? "There are no nodes." : "No node matches the filter.";
    setAttribute(list, "data-empty", nodes.length === 0 ? none : null);
    showRows();
  }
}

/** Reads the sizes after the panel's size changed. */
function measure() {
  const rem = Number.parseFloat(getComputedStyle(document.documentElement).fontSize);
  const isNarrow = list.clientWidth < NARROW * rem;
  list.classList.toggle("narrow", isNarrow);
  list.classList.toggle("medium", !isNarrow && list.clientWidth < MEDIUM * rem);
  height = Math.round((isNarrow ? 3.6 : 2) * rem);
  list.style.setProperty("--row", `${height}px`);
  body.style.height = `${nodes.length * height}px`;
  scrolled();
}

function scrolled() {
  view = { top: list.scrollTop, height: list.clientHeight };
  showRows();
}

/** Fills as many row elements as are visible. */
function showRows() {
  const first = Math.max(0, Math.floor(view.top / height) - SPARE);
  const number = Math.min(nodes.length - first, Math.ceil(view.height / height) + 2 * SPARE);
  while (slots.length < number) {
    slots.push(newSlot());
    body.append(slots.at(-1).row);
  }
  const now = Date.now();
  slots.forEach((slot, at) => {
    slot.row.hidden = at >= number;
    if (at < number) {
      showRow(slot, nodes[first + at], first + at, now);
    }
  });
  const isShown = nodes.slice(first, first + Math.max(0, number)).some((node) => node.name === active);
  setAttribute(list, "aria-activedescendant", isShown ? "active-row" : null);
}

function newSlot() {
  const cells = Object.fromEntries(COLUMNS.map(({ name }) => [
    name, el("span", { role: "gridcell", class: `c-${name}`, "aria-colindex": indexOf(name) }),
  ]));
  const mark = el("span", { class: "sample", "aria-hidden": "true" });
  const words = el("span");
  cells.assessment.append(mark, words);
  return { row: el("div", { class: "row", role: "row" }, ...Object.values(cells)), cells, mark, words };
}

function showRow({ row, cells, mark, words }, node, index, now) {
  setAttribute(row, "data-row", node.name);
  setAttribute(row, "aria-rowindex", String(index + 2));
  setAttribute(row, "id", node.name === active ? "active-row" : null);
  setAttribute(row, "aria-selected", String(node.name === active));
  row.style.transform = `translateY(${index * height}px)`;
  setAttribute(mark, "data-phase", node.phase);
  setAttribute(mark, "data-assessment", node.assessment ?? "None");
  setAttribute(mark, "data-mark", symbol(node));
  setText(words, node.assessment ?? "no pool");
  setText(cells.name, node.name);
  setText(cells.phase, node.phase);
  setText(cells.version, node.version || "?");
  setText(cells.estimate, node.estimate);
  setText(cells.since, age(node.since, now));
  setText(cells.wave, node.wave);
  setText(cells.zone, node.zone);
  setAttribute(row, "data-plain", node.progress || node.message ? null : "");
  setText(cells.message, [node.progress, node.message].filter(Boolean).join(" · "));
}

function setActive(name) {
  active = name;
  showRows();
}

/** Moves the active row by a key and scrolls it into view. */
function pressed(event, open) {
  if (event.target !== list || event.ctrlKey || event.metaKey || event.altKey) {
    return;
  }
  const at = nodes.findIndex((node) => node.name === active);
  if ((event.key === "Enter" || event.key === " ") && at >= 0) {
    event.preventDefault();
    open(active);
    return;
  }
  const page = Math.max(1, Math.floor(view.height / height) - 2);
  const target = {
    ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: nodes.length - 1,
  }[event.key];
  if (target !== undefined && nodes.length > 0) {
    event.preventDefault();
    const index = Math.min(nodes.length - 1, Math.max(0, target));
    setActive(nodes[index].name);
    scrollTo(index);
  }
}

function scrollTo(index) {
  const headHeight = head.offsetHeight;
  const top = index * height;
  const room = list.clientHeight - headHeight - height;
  list.scrollTop = Math.min(top, Math.max(list.scrollTop, top - room));
}
