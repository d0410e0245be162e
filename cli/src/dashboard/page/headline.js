// The answer at the top: are we updating, is it well, what must I do?

import { commandLine } from "./copy.js";
import { byId, el, fill, setAttribute, setText } from "./dom.js";
import { levelSymbol } from "./looks.js";
import { age, count, left, opens, sentence } from "./words.js";

const URGENCY = ["Degraded", "Progressing", "Excluded", "Pending", "Completed", "Empty"];

/** Returns the pool that matters most: the one with the worst assessment, the largest first. */
export function mainPool(pools) {
  const sorted = [...pools].sort((a, b) => URGENCY.indexOf(a.assessment) - URGENCY.indexOf(b.assessment)
    || b.total - a.total);
  return sorted[0];
}

/** True if all nodes run the pool's image and nothing casts doubt on which image that is, such as a new, unread spec. */
function isUpToDate(pool) {
  return isComplete(pool) && Boolean(pool.digest) && !pool.warnings?.length;
}

function isComplete(pool) {
  return pool.updated === pool.total;
}

/** Returns the answer for a pool with nothing left to update. */
function complete(pool) {
  const { name, total, version, warnings } = pool;
  const on = version ? ` on ${version}` : "";
  if (isUpToDate(pool)) {
    return `Pool ${name} is up to date: ${count(total, "node")}${on}.`;
  }
  const doubt = warnings?.[0]?.message || "its image is not resolved yet";
  return sentence(`Pool ${name} may not be up to date (${count(total, "node")}${on}): ${doubt}`);
}

/** Returns the answer to "are we updating?" for one pool. */
export function updating(pool, now) {
  const { name, total, updated } = pool;
  const done = `${updated} of ${total}`;
  const to = pool.version ? ` to ${pool.version}` : "";
  const next = pool.gate?.next ? `; ${opens(pool.gate.next, now)}` : "";
  if (pool.assessment === "Empty") {
    return `Pool ${name} has no nodes.`;
  }
  if (isComplete(pool)) {
    return complete(pool);
  }
  if (pool.progressing?.reason === "RolloutHalted") {
    return `Pool ${name} is halted: ${done} updated${to}, and no other node starts.`;
  }
  // The condition is written a moment after the first node starts, and is False as soon as no further node may start.
  if (pool.progressing?.status === "True" || pool.assessment === "Progressing") {
    const rest = left(pool.estimate);
    return `Updating ${name}${to}: ${done} done${rest ? `, ${rest}` : ""}.`;
  }
  const why = pool.gate && !pool.gate.open ? `; ${pool.gate.text}${next}` : "";
  return sentence(`Not updating ${name}${to}: ${done} done${why}`);
}

/** Returns the answer to "are we updating?" for all pools. */
export function headline(store, now) {
  const { pools } = store;
  if (pools.length === 0) {
    return store.only ? `Pool ${store.only} no longer exists.` : "There is no pool, so Berth updates no node.";
  }
  const total = pools.reduce((sum, pool) => sum + pool.total, 0);
  if (pools.length > 1 && pools.every(isUpToDate)) {
    return `All ${pools.length} pools are up to date: ${count(total, "node")}.`;
  }
  const doubtful = pools.every(isComplete) ? pools.filter((pool) => !isUpToDate(pool)) : [];
  const first = mainPool(doubtful.length > 0 ? doubtful : pools);
  const answer = updating(first, now) + alsoUpdating(pools.filter((pool) => pool !== first));
  return store.fleet.paused ? `The fleet is paused. ${answer}` : answer;
}

/** Names the other pools that are being updated. */
function alsoUpdating(pools) {
  const names = pools.filter((pool) => pool.progressing?.status === "True" && !isComplete(pool)).map(({ name }) => name);
  return names.length > 0 ? ` Also updating: ${names.join(", ")}.` : "";
}

/** Returns the finding that an admin must read first: the worst one, about the main pool if possible. */
export function worst(store) {
  const main = mainPool(store.pools)?.name;
  const found = (level) => {
    const all = store.health.filter((finding) => finding.level === level);
    const own = all.filter((finding) => finding.pool === main);
    // A finding about the pool itself, such as a halt, matters more than one about a node.
    const ofPool = own.find((finding) => !finding.resources.some((name) => name.startsWith("nodes/")));
    return ofPool ?? own[0] ?? all[0];
  };
  return found("Error") ?? found("Warning") ?? found("Info");
}

function healthWords(store, finding) {
  const more = store.health.filter((other) => other !== finding && other.level !== "Info").length;
  if (!finding) {
    return "Nothing is wrong.";
  }
  return sentence(finding.message) + (more > 0 ? ` ${count(more, "more finding")} under Health.` : "");
}

function mood(store, finding) {
  if (finding?.level === "Error") {
    return "trouble";
  }
  if (finding?.level === "Warning") {
    return "warning";
  }
  const isDone = store.pools.every(isUpToDate);
  return isDone ? "well" : "working";
}

function todo({ finding, otherwise }) {
  if (!finding) {
    return [el("p", {}, el("strong", {}, "What to do: "), otherwise)];
  }
  const steps = finding.remedy.slice(0, 1).map((step) => el("p", {}, el("strong", {}, "What to do: "), sentence(step)));
  return [...steps, ...(finding.commands ?? []).slice(0, 1).map((command) => commandLine(command))];
}

/** Returns what an admin must do without a finding. */
function nothingToDo(store) {
  if (store.pools.length === 0) {
    return store.only
      ? "to see the other pools, start kubectl berth dashboard without a pool." : "create a BootcNodePool.";
  }
  const isDone = store.pools.every(isComplete);
  return isDone ? "nothing." : "nothing; the update continues automatically.";
}

/** Shows the headline. `seen` is the time of the shown data if the data is old, otherwise `null`. */
export function showHeadline(store, now, seen) {
  if (!store.loaded) {
    return;
  }
  const finding = worst(store);
  const isEmpty = store.pools.length === 0;
  setAttribute(byId("headline"), "data-mood", isEmpty ? "unknown" : mood(store, finding));
  const old = seen === null ? "" : `${age(seen, now)} ago: `;
  setText(byId("headline-sentence"), old + headline(store, now));
  const symbol = finding ? levelSymbol(finding.level) : "✓";
  fill(byId("headline-health"), [symbol, healthWords(store, finding)], ([mark, words]) => [
    el("span", { class: "mark", "aria-hidden": "true", "data-level": finding?.level ?? "None" }, mark),
    words,
  ]);
  fill(byId("headline-todo"), { finding, otherwise: nothingToDo(store) }, todo);
  document.title = (seen === null ? "" : "Old: ") + title(store);
}

function title(store) {
  const main = mainPool(store.pools);
  return main ? `${main.name} ${main.percent}% ${main.assessment} – Berth` : "Berth";
}
