// The drawing of a pool's rollout. The server draws the rows that are asked for; this module pages through them.

import { byId, el, setText, showText } from "./dom.js";
import { ask } from "./stream.js";

/** Rows of a page. */
const ROWS = 60;
/** Shortest time between two requests. */
const REFRESH_MS = 1000;

let pool = null;
let from = 0;
let total = 0;
/** Number of the first row whose update has not ended; `null` if there is none. */
let running = null;
/** True until the first drawing of a pool: then the page moves to the running rows. */
let isFresh = true;
let isShown = false;
let isChanged = false;
let isLoading = false;
let timer = null;

/** Makes the controls react; `choose` gets the name of the pool that the admin chooses. */
export function listenToTimeline(choose) {
  byId("timeline-pool").addEventListener("change", (event) => choose(event.target.value));
  const go = (target) => {
    const last = Math.max(0, Math.ceil(total / ROWS) - 1) * ROWS;
    from = Math.min(last, Math.max(0, target()));
    load();
  };
  byId("timeline-first").addEventListener("click", () => go(() => 0));
  byId("timeline-back").addEventListener("click", () => go(() => from - ROWS));
  byId("timeline-next").addEventListener("click", () => go(() => from + ROWS));
  byId("timeline-last").addEventListener("click", () => go(() => total));
  byId("timeline-running").addEventListener("click", () => go(runningPage));
}

/** Shows the drawing of a pool, or stops to show one (`null`). */
export function showTimeline(name, pools) {
  isShown = name !== null;
  if (!isShown) {
    return;
  }
  showChoices(pools, name);
  if (pool !== name) {
    pool = name;
    from = 0;
    total = 0;
    running = null;
    isFresh = true;
    byId("timeline").replaceChildren();
  }
  load();
}

/** Draws again if the drawing of this pool changed. */
export function timelineChanged(changed) {
  if (isShown && changed.has(pool)) {
    isChanged = true;
    timer ??= setTimeout(refresh, REFRESH_MS);
  }
}

/** Shows changed pools in the choice. */
export function showTimelinePools(pools) {
  if (isShown) {
    showChoices(pools, pool);
  }
}

function refresh() {
  timer = null;
  if (isChanged && isShown) {
    load();
  }
}

function showChoices(pools, name) {
  const select = byId("timeline-pool");
  const names = pools.map((one) => one.name);
  if ([...select.options].map((option) => option.value).join("\n") !== names.join("\n")) {
    select.replaceChildren(...names.map((one) => el("option", { value: one }, one)));
  }
  select.value = name;
}

async function load() {
  if (isLoading) {
    timer ??= setTimeout(refresh, REFRESH_MS);
    isChanged = true;
    return;
  }
  isLoading = true;
  isChanged = false;
  const asked = { pool, from };
  try {
    const answer = await ask(`/api/timeline/${encodeURIComponent(pool)}?from=${from}&rows=${ROWS}`);
    const text = await answer.text();
    if (asked.pool === pool && asked.from === from) {
      show(answer, text);
    }
  } catch {
    showText(byId("timeline-note"), "kubectl berth dashboard does not answer; this is the last drawing that was read.");
  } finally {
    isLoading = false;
  }
}

function show(answer, text) {
  if (!answer.ok) {
    total = 0;
    byId("timeline").replaceChildren();
    showText(byId("timeline-note"), errorOf(text));
    showPager();
    return;
  }
  const drawing = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  if (drawing.localName !== "svg") {
    showText(byId("timeline-note"), "The drawing cannot be read. Reload the page.");
    return;
  }
  total = Number(answer.headers.get("Berth-Rows")) || 0;
  const first = answer.headers.get("Berth-Running");
  running = first === null ? null : Number(first);
  if (isFresh && runningPage() !== from) {
    isFresh = false;
    from = runningPage();
    isChanged = true;
    timer ??= setTimeout(refresh, 0);
    return;
  }
  isFresh = false;
  showText(byId("timeline-note"), "");
  byId("timeline").replaceChildren(document.importNode(drawing, true));
  showPager();
}

/** Returns the first row of the page with the running updates. The rows are in the order of their turns. */
function runningPage() {
  return Math.floor((running ?? 0) / ROWS) * ROWS;
}

/** Returns the error that the server answered, in words. */
function errorOf(text) {
  try {
    return JSON.parse(text).error;
  } catch {
    return "The server's answer cannot be read.";
  }
}

function showPager() {
  const end = Math.min(total, from + ROWS);
  setText(byId("timeline-rows"), total === 0 ? "no rows" : `rows ${from + 1} to ${end} of ${total}`);
  byId("timeline-first").disabled = from === 0;
  byId("timeline-back").disabled = from === 0;
  byId("timeline-next").disabled = end >= total;
  byId("timeline-last").disabled = end >= total;
  byId("timeline-running").disabled = running === null || runningPage() === from;
}
