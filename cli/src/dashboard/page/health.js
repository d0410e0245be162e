// Health findings with what to do: steps, runbook and commands.

import { commandLine } from "./copy.js";
import { byId, el, fill, setAttribute, setText } from "./dom.js";
import { levelSymbol } from "./looks.js";
import { age, sentence } from "./words.js";

/** Most nodes of a finding that are shown as links. */
const NAMED = 30;

/** Shows all findings. */
export function showHealth(store) {
  fill(byId("health"), store.health, (health) => health.length > 0 ? health.map(finding)
    : [el("p", {}, "No findings: nothing is wrong.")]);
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

/** Returns the element of a finding. */
export function finding(found) {
  const since = found.since
    ? el("time", { datetime: found.since }, `for ${age(found.since, Date.now())}`) : null;
  return el("article", { class: "finding", "data-finding": found.message, "data-level": found.level },
    el("h3", {}, mark(found.level), found.message),
    el("p", { class: "quiet" }, `${found.level} · impact: ${found.impact}`, since ? " · " : null, since),
    found.description ? el("p", {}, found.description) : null,
    ...remedy(found),
    resources(found));
}

function mark(level) {
  return el("span", { class: "mark", "data-level": level, "aria-hidden": "true" }, levelSymbol(level));
}

function remedy(found) {
  if (!found.remedy?.length) {
    return [];
  }
  const kind = found.remedy.length === 1 ? "remedy single" : "remedy";
  const steps = el("ol", { class: kind }, ...found.remedy.map((step) => el("li", {}, sentence(step))));
  return [el("h4", {}, "What to do"), steps, ...(found.commands ?? []).map((command) => commandLine(command)),
    runbook(found.runbook)];
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
function resources(found) {
  const names = found.resources.filter((name) => name.startsWith("nodes/")).map((name) => name.slice("nodes/".length));
  if (names.length === 0) {
    return null;
  }
  const links = names.slice(0, NAMED).map((name) => el("li", {},
    el("a", { href: `#/node/${encodeURIComponent(name)}` }, name)));
  const more = names.length > NAMED ? [el("li", {}, `and ${names.length - NAMED} more`)] : [];
  return el("ul", { class: "names", "aria-label": "Nodes" }, ...links, ...more);
}
