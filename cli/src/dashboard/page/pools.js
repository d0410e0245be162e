// A card for each pool: version, assessment, bar, numbers, time left and gate.

import { commandLine } from "./copy.js";
import { announce, arrange, byId, el, fill, setAttribute, setText, showText } from "./dom.js";
import { poolSymbol } from "./looks.js";
import { waveCounts, waveKey } from "./waves.js";
import { left, opens } from "./words.js";

const cards = new Map();

/** Shows the cards of all pools and announces a pool whose assessment changed. */
export function showPools(store, now) {
  const names = new Set(store.pools.map((pool) => pool.name));
  for (const [name, card] of cards) {
    if (!names.has(name)) {
      card.root.remove();
      cards.delete(name);
    }
  }
  const old = oldVersions(store);
  const counts = waveCounts(store.nodes);
  for (const pool of store.pools) {
    const card = cards.get(pool.name) ?? newCard(pool);
    cards.set(pool.name, card);
    showCard(card, pool, old.get(pool.name), now);
    showWaves(card.waves, pool, counts);
  }
  arrange(byId("pools"), store.pools.map((pool) => cards.get(pool.name).root));
  showText(byId("fleet"), fleetText(store.fleet));
  byId("fleet").classList.toggle("quiet", !store.fleet.paused);
}

function fleetText(fleet) {
  const parts = [];
  if (fleet.paused) {
    parts.push("The fleet is paused: no node starts an update.");
  }
  if (fleet.maxUnavailable !== undefined && fleet.maxUnavailable !== null) {
    parts.push(`At most ${fleet.maxUnavailable} of the nodes of all pools may be down at once.`);
  }
  return parts.join(" ");
}

function newCard(pool) {
  const part = (tag, attributes, ...children) => el(tag, attributes, ...children);
  const card = {
    mark: part("span", { class: "mark", "aria-hidden": "true" }),
    word: part("span", { class: "word" }),
    version: part("span", { class: "version" }),
    completion: part("strong"),
    left: part("span", { class: "left" }),
    bar: part("div", { class: "bar-of-pool", role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100" }),
    numbers: part("p", { class: "numbers" }),
    gate: part("p", { class: "gate" }),
    waves: part("ol", { class: "waves", "aria-label": "Waves" }),
    summary: part("ul", { class: "plain" }),
    commands: part("div", { class: "commands" }),
  };
  for (const kind of ["updated", "progressing", "degraded"]) {
    card[kind] = card.bar.appendChild(el("span", { "data-part": kind }));
  }
  const timeline = el("a", { href: `#/timeline/${encodeURIComponent(pool.name)}` }, "Timeline");
  timeline.setAttribute("aria-label", `Timeline of pool ${pool.name}`);
  card.root = part("article", { class: "pool", "data-pool": pool.name, "aria-label": `Pool ${pool.name}` },
    part("header", {}, part("h3", {}, pool.name), card.version, part("span", { class: "state" }, card.mark, card.word)),
    card.bar,
    part("p", { class: "done" }, card.completion, card.left, timeline),
    card.numbers, card.gate, card.waves,
    part("details", {}, part("summary", {}, "Details and commands"), card.summary, card.commands));
  return card;
}

function showCard(card, pool, old, now) {
  announceChange(card, pool);
  const { root } = card;
  setAttribute(root, "data-assessment", pool.assessment);
  setAttribute(root, "data-percent", String(pool.percent));
  setText(card.mark, poolSymbol(pool.assessment));
  setText(card.word, pool.assessment);
  setText(card.version, versionText(pool, old));
  setText(card.completion, pool.completion);
  setText(card.left, left(pool.estimate));
  setText(card.numbers, pool.numbers);
  showBar(card, pool);
  showGate(card.gate, pool.gate, now);
  fill(card.summary, pool.summary ?? [], (lines) => lines.map((line) => el("li", {}, line.trim())));
  fill(card.commands, pool.commands ?? [], (commands) => commands.map((c) => commandLine(c.command, c.label)));
}

function announceChange(card, pool) {
  if (card.assessment && card.assessment !== pool.assessment) {
    announce(`Pool ${pool.name} is now ${pool.assessment}, ${pool.completion}`);
  }
  card.assessment = pool.assessment;
}

/** Returns the versions that the outdated nodes of each pool run. */
function oldVersions(store) {
  const versions = new Map(store.pools.map((pool) => [pool.name, new Set()]));
  for (const node of store.nodes.values()) {
    if (node.phase !== "Updated" && node.version) {
      versions.get(node.pool)?.add(node.version);
    }
  }
  return versions;
}

/** Returns `4.1 → 4.2`: the versions that outdated nodes run, and the target. */
function versionText(pool, versions) {
  const target = pool.version ?? pool.digest?.slice(0, 19) ?? pool.image;
  const old = [...versions].filter((version) => version !== target).sort();
  const from = old.length > 2 ? `${old.length} versions` : old.join(", ");
  return from ? `${from} → ${target}` : target;
}

function showBar(card, pool) {
  const share = (number) => `${(100 * number) / Math.max(1, pool.total)}%`;
  card.updated.style.width = share(pool.updated);
  card.progressing.style.width = share(pool.progressing);
  card.degraded.style.width = share(pool.degraded);
  setAttribute(card.bar, "aria-valuenow", String(pool.percent));
  setAttribute(card.bar, "aria-label", `Updated nodes of pool ${pool.name}`);
}

function showGate(element, gate, now) {
  element.hidden = !gate;
  if (!gate) {
    return;
  }
  setAttribute(element, "data-open", String(gate.open));
  const next = gate.next && !gate.open ? `; ${opens(gate.next, now)}` : "";
  const words = `${gate.open ? "Gate open" : "Gate closed"}${gate.text ? `: ${gate.text}` : ""}${next}`;
  fill(element, [gate.open, words], () => [
    el("span", { class: "mark", "aria-hidden": "true" }, gate.open ? "✓" : "‖"), words,
  ]);
}

function showWaves(list, pool, counts) {
  const waves = (pool.waves ?? []).map(({ name, state }) => {
    const { updated, total } = counts.get(waveKey(pool.name, name)) ?? { updated: 0, total: 0 };
    return { name, state, done: `${updated}/${total}` };
  });
  fill(list, waves, (all) => all.map(wave));
  list.hidden = waves.length === 0;
}

function wave({ name, state, done }) {
  return el("li", { "data-state": state }, el("span", { class: "name" }, name), ` ${done} `,
    el("span", { class: "quiet" }, state.toLowerCase()));
}
