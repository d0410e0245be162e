// The legend: symbol, colour and number of nodes of each phase and trouble. Each entry filters the nodes.

import { byId, el, setAttribute, setText } from "./dom.js";
import { tokens } from "./filter.js";
import { PHASES, TROUBLES } from "./looks.js";

const entries = [];

/** Builds the legend; `choose` gets the filter word of an entry that the admin chooses. */
export function buildLegend(choose) {
  const all = [
    ...TROUBLES.map((trouble) => ({ ...trouble, field: "assessment", word: `is:${trouble.name}` })),
    ...PHASES.map((phase) => ({ ...phase, field: "phase", word: `phase:${phase.name}` })),
  ];
  for (const entry of all) {
    const number = el("span", { class: "count" });
    const button = el("button", { type: "button", title: `${entry.name}: ${entry.words}`, "aria-pressed": "false" },
      sample(entry), el("span", {}, entry.name), number);
    button.addEventListener("click", () => choose(entry.word));
    entries.push({ ...entry, number, button });
  }
  byId("phases").replaceChildren(...entries.map((entry) => el("li", {}, entry.button)));
}

function sample(entry) {
  const attributes = { class: "sample", "data-mark": entry.symbol, "aria-hidden": "true" };
  attributes[`data-${entry.field}`] = entry.name;
  return el("span", attributes);
}

/** Shows how many nodes each entry has, and which entries the filter names. */
export function showLegend(store, filter) {
  const counts = new Map();
  for (const node of store.nodes.values()) {
    counts.set(node.phase, (counts.get(node.phase) ?? 0) + 1);
    counts.set(node.assessment, (counts.get(node.assessment) ?? 0) + 1);
  }
  const words = tokens(filter).map((word) => word.toLowerCase());
  for (const { name, word, number, button } of entries) {
    setText(number, String(counts.get(name) ?? 0));
    setAttribute(button, "aria-pressed", String(words.includes(word.toLowerCase())));
  }
}
