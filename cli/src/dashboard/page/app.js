// Entry of the page: connects the stream to the parts of the page and draws at most once in a frame.

import { connect } from "./stream.js";
import { seenAt, showConnection } from "./connection.js";
import { listenForCopies } from "./copy.js";
import { announce, byId, el, fill, setAttribute, setText } from "./dom.js";
import { drawerChanged, listenToDrawer, showDrawer } from "./drawer.js";
import { parse, toggle } from "./filter.js";
import { mainPool, showHeadline } from "./headline.js";
import { showHealth, showHealthAges } from "./health.js";
import { buildLegend, showLegend } from "./legend.js";
import { buildList, filterList, focusRow, showAges, showList } from "./list.js";
import { showPools } from "./pools.js";
import { fragment, route } from "./route.js";
import { applyChange, applyState, emptyStore, merge, noChanges } from "./store.js";
import { filterTiles, focusTile, listenToTiles, showPeek, showTiles } from "./tiles.js";
import { listenToTimeline, showTimeline, showTimelinePools, timelineChanged } from "./timeline.js";

/** Pause in the typing of a filter after which the number of matching nodes is announced. */
const COUNTING_MS = 700;

const store = emptyStore();
let counting = null;
const filter = byId("filter");
let link = { open: false, since: null, end: null, why: "" };
let pending = noChanges();
let isScheduled = false;
let isFilterScheduled = false;
/** The view behind the drawer. */
let behind = { view: "nodes", name: null };
/** Where the drawer was opened: the focus returns there. */
let openedFrom = "tiles";

/** Draws the changes in the next frame, with all others that arrive before. */
function schedule(changes) {
  merge(pending, changes);
  if (!isScheduled) {
    isScheduled = true;
    requestAnimationFrame(draw);
  }
}

function draw() {
  isScheduled = false;
  const changes = pending;
  pending = noChanges();
  const now = Date.now();
  showConnection(store, link, now);
  if (!store.loaded) {
    return;
  }
  showHeadline(store, now, seenAt(store, link));
  if (changes.all || changes.pools || changes.health) {
    showPools(store, now);
    showTimelinePools(store.pools);
  }
  if (changes.all || changes.health) {
    showHealth(store);
  }
  showNotes();
  showTiles(store, changes);
  showList(store, changes);
  if (changes.all || changes.nodes.size > 0 || changes.gone.size > 0) {
    showCounts();
  }
  timelineChanged(changes.timeline);
  drawerChanged(changes);
  if (changes.all) {
    setText(byId("cluster"), store.cluster + (store.only ? `, pool ${store.only}` : ""));
    byId("cluster").title = `kubectl berth ${store.version}`;
    showRoute();
  }
}

function showCounts() {
  showLegend(store, filter.value);
  const { size } = store.nodes;
  const isFiltered = filter.value.trim() !== "";
  const matching = isFiltered ? [...store.nodes.values()].filter(parse(filter.value)).length : size;
  setText(byId("nodes-count"), isFiltered ? `${matching} of ${size}` : String(size));
}

function showNotes() {
  const notes = byId("notes");
  notes.hidden = store.notes.length === 0;
  fill(notes, store.notes, (all) => all.map((note) => el("li", {}, note)));
}

/** Shows the ages and times left, which change without an event. */
function tick() {
  const now = Date.now();
  showConnection(store, link, now);
  if (store.loaded) {
    showHeadline(store, now, seenAt(store, link));
    showPools(store, now);
    showAges();
    showPeek();
    showHealthAges(now);
  }
}

function showRoute() {
  const to = route(location.hash);
  if (to.view !== "node") {
    behind = to;
  }
  for (const view of ["nodes", "timeline", "health"]) {
    byId(`view-${view}`).hidden = behind.view !== view;
    setAttribute(document.querySelector(`[data-view=${view}]`), "aria-current", behind.view === view ? "page" : null);
  }
  if (store.loaded) {
    const pool = behind.name ?? mainPool(store.pools)?.name ?? null;
    showTimeline(behind.view === "timeline" ? pool : null, store.pools);
    showDrawer(to.view === "node" ? to.name : null);
  }
}

function openNode(name, from) {
  openedFrom = from;
  location.hash = fragment("node", name);
}

/** Returns to the view behind the drawer, and the focus to the node that was open. */
function closedDrawer(name) {
  if (route(location.hash).view === "node") {
    location.hash = fragment(behind.view, behind.name);
  }
  if (behind.view === "nodes" && name !== null) {
    const [first, second] = openedFrom === "list" ? [focusRow, focusTile] : [focusTile, focusRow];
    if (!first(name)) {
      second(name);
    }
  }
}

/** Shows the filter in the next frame, so that fast typing does not draw more often. */
function filterChanged() {
  if (!isFilterScheduled) {
    isFilterScheduled = true;
    requestAnimationFrame(showFilter);
  }
}

/** Announces the number of matching nodes when the admin stops typing. */
function announceMatches() {
  const words = `${byId("nodes-count").textContent} nodes`;
  clearTimeout(counting);
  counting = setTimeout(() => announce(words), COUNTING_MS);
}

function showFilter() {
  isFilterScheduled = false;
  const predicate = parse(filter.value);
  if (store.loaded) {
    filterList(predicate);
    filterTiles(predicate);
    showCounts();
    announceMatches();
  }
}

function start() {
  listenForCopies();
  listenToTiles((name) => openNode(name, "tiles"));
  buildList((name) => openNode(name, "list"));
  buildLegend((word) => {
    filter.value = toggle(filter.value, word);
    showFilter();
  });
  listenToTimeline((name) => {
    location.hash = fragment("timeline", name);
  });
  listenToDrawer(closedDrawer);
  filter.addEventListener("input", filterChanged);
  // A link to a fragment would change the view, so the skip link moves the focus itself.
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("main").focus();
  });
  addEventListener("hashchange", showRoute);
  showRoute();
  connect({
    state: (data) => schedule(applyState(store, data)),
    change: (data) => schedule(applyChange(store, data)),
    link: (found) => {
      link = found;
      schedule(noChanges());
    },
  });
  setInterval(tick, 1000);
}

start();
