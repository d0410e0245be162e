// Health findings with what to do: steps, runbook and commands.

import { commandLine } from "./copy.js";
import { arrange, byId, el, fill, setAttribute, setText } from "./dom.js";
import { levelSymbol } from "./looks.js";
import { age, sentence } from "./words.js";

/** Most nodes of a finding that are shown as links. */
const NAMED = 30;

/** Shows all findings. */
export function showHealth(store) {
  showFindings(byId("health-findings"), store.health);
  byId("health-none").hidden = store.health.length > 0;
  const urgent = store.health.filter((one) => one.level !== "Info");
  const level = urgent.some((one) => one.level === "Error") ? "Error" : "Warning";
  setText(byId("health-count"), urgent.length > 0 ? `${levelSymbol(level)} ${urgent.length}` : "");
  setAttribute(byId("health-count"), "data-level", urgent.length > 0 ? level : null);
}

/** Shows the ages of all findings. */
export function showHealthAges(now) {
  for (const time of document.querySelectorAll(".finding time")) {
    setText(time, `for ${age(time.dateTime, now)}`);
  }
}

/** Shows findings in `parent`. Each keeps its element as long as it has its message, and with it the focus. */
export function showFindings(parent, findings) {
  const old = new Map([...parent.children].map((element) => [element.dataset.key, element]));
  const keys = new Map();
  const elements = findings.map((found) => {
    const number = keys.get(found.message) ?? 0;
    keys.set(found.message, number + 1);
    const key = `${number} ${found.message}`;
    const element = old.get(key) ?? newFinding(found, key);
    old.delete(key);
    showFinding(element, found);
    return element;
  });
  old.forEach((element) => element.remove());
  arrange(parent, elements);
}

function newFinding({ message }, key) {
  return el("article", { class: "finding", "data-finding": message, "data-key": key },
    el("div"), el("div"), el("div"));
}

function showFinding(element, found) {
  setAttribute(element, "data-level", found.level);
  const [head, remedies, nodes] = element.children;
  const { level, message, impact, since, description, remedy, commands, runbook, resources } = found;
  fill(head, { level, message, impact, since, description }, headOf);
  fill(remedies, { remedy, commands, runbook }, remedyOf);
  fill(nodes, resources, resourcesOf);
}

function headOf(found) {
  const since = found.since
    ? el("time", { datetime: found.since }, `for ${age(found.since, Date.now())}`) : null;
  const description = found.description ? [el("p", {}, found.description)] : [];
  return [
    el("h3", {}, mark(found.level), found.message),
    el("p", { class: "quiet" }, `${found.level} · impact: ${found.impact}`, since ? " · " : null, since),
    ...description,
  ];
}

function mark(level) {
  return el("span", { class: "mark", "data-level": level, "aria-hidden": "true" }, levelSymbol(level));
}

function remedyOf(found) {
  if (!found.remedy?.length) {
    return [];
  }
  const kind = found.remedy.length === 1 ? "remedy single" : "remedy";
  const steps = el("ol", { class: kind }, ...found.remedy.map((step) => el("li", {}, sentence(step))));
  const page = runbook(found.runbook);
  return [el("h4", {}, "What to do"), steps, ...(found.commands ?? []).map((command) => commandLine(command)),
    ...(page ? [page] : [])];
}

/** Returns the link to the runbook. Only addresses with https are links. */
function runbook(page) {
  if (!page) {
    return null;
  }
  const isSafe = page.url?.startsWith("https://");
  const link = isSafe
    ? el("a", { href: page.url, target: "_blank", rel: "noopener noreferrer" }, page.text) : page.text;
  return el("p", {}, "Runbook: ", link);
}

/** Returns links to the drawers of the finding's nodes. */
function resourcesOf(resources) {
  const names = resources.filter((name) => name.startsWith("nodes/")).map((name) => name.slice("nodes/".length));
  if (names.length === 0) {
    return [];
  }
  const links = names.slice(0, NAMED).map((name) => el("li", {},
    el("a", { href: `#/node/${encodeURIComponent(name)}` }, name)));
  const more = names.length > NAMED ? [el("li", {}, `and ${names.length - NAMED} more`)] : [];
  return [el("ul", { class: "names", "aria-label": "Nodes" }, ...links, ...more)];
}
