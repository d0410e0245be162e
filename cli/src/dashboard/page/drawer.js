// The drawer of one node: state, health, blockers, explanation with what-if, chapters, conditions and story.

import { commandLine } from "./copy.js";
import { announce, byId, el, fill, setAttribute, setText, showText } from "./dom.js";
import { showFindings } from "./health.js";
import { stateWords, symbol } from "./looks.js";
import { ask } from "./stream.js";
import { age, clock, left, sentence, settings, span } from "./words.js";

/** Shortest time between two reads of the shown node. */
const REFRESH_MS = 3000;

const drawer = byId("drawer");
let shown = null;
let tried = [];
let timer = null;
/** Number of the newest request; answers to older requests are dropped. */
let newest = 0;
/** The same for requests with settings. */
let newestTry = 0;

/** Parts of the drawer that are filled from the answer, besides its findings. */
const PARTS = [
  "drawer-facts", "explain", "what-if-ideas", "what-if-result", "drawer-updates", "drawer-conditions", "drawer-turns",
  "drawer-commands", "drawer-text",
];

/** Makes the drawer react; `closed` is called when the admin closes it. */
export function listenToDrawer(closed) {
  byId("drawer-close").addEventListener("click", () => drawer.close());
  drawer.addEventListener("close", () => {
    const name = shown;
    shown = null;
    document.body.classList.remove("still");
    closed(name);
  });
  // A click beside the drawer is a click on the dialog itself.
  drawer.addEventListener("click", (event) => event.target === drawer && drawer.close());
  byId("what-if-form").addEventListener("submit", (event) => {
    event.preventDefault();
    tryOut(settings(byId("what-if").value));
  });
  byId("what-if-clear").addEventListener("click", () => {
    byId("what-if").value = "";
    tryOut([]);
  });
}

/** Opens the drawer of a node, or closes it (`null`). */
export function showDrawer(name) {
  if (name === shown) {
    return;
  }
  if (name === null) {
    drawer.close();
    return;
  }
  shown = name;
  reset(name);
  if (!drawer.open) {
    drawer.showModal();
    document.body.classList.add("still");
  }
  load();
}

function reset(name) {
  tried = [];
  newestTry += 1;
  setAttribute(drawer, "data-node", name);
  setText(byId("drawer-title"), name);
  for (const id of PARTS) {
    fill(byId(id), null, () => []);
  }
  showFindings(byId("drawer-health"), []);
  byId("what-if").value = "";
  byId("what-if-result").hidden = true;
  byId("what-if-clear").hidden = true;
  byId("what-if-ideas").hidden = true;
  showText(byId("drawer-error"), "");
  byId("drawer-body").scrollTop = 0;
}

/** Reads the node again if anything changed: the explanation depends on all nodes of the pool. */
export function drawerChanged(changes) {
  const isChanged = changes.all || changes.pools || changes.health || changes.nodes.size > 0 || changes.gone.size > 0;
  if (shown !== null && isChanged) {
    timer ??= setTimeout(load, REFRESH_MS);
  }
}

/**
 * Reads the explanation with some settings. Only the admin starts this, not a change in the cluster: each try is a dry
 * run on the API server.
 */
async function tryOut(changes) {
  tried = changes;
  newestTry += 1;
  const request = newestTry;
  byId("what-if-clear").hidden = tried.length === 0;
  if (tried.length === 0) {
    byId("what-if-result").hidden = true;
    return;
  }
  const query = tried.map((setting) => `whatIf=${encodeURIComponent(setting)}`).join("&");
  const answer = await read(`${pathOf(shown)}?${query}`);
  if (request === newestTry && shown !== null) {
    showWhatIf(answer);
  }
}

function pathOf(name) {
  return `/api/nodes/${encodeURIComponent(name)}`;
}

/** Reads the node. */
async function load() {
  clearTimeout(timer);
  timer = null;
  if (shown === null) {
    return;
  }
  newest += 1;
  const request = newest;
  const present = await read(pathOf(shown));
  if (request !== newest || shown === null) {
    return;
  }
  showText(byId("drawer-error"), present.error ?? "");
  if (!present.error) {
    showNode(present);
  }
}

/** Returns the server's answer, or an object with `error` in words. */
async function read(path) {
  try {
    const answer = await ask(path);
    const data = await answer.json();
    return answer.ok ? data : { error: sentence(data.error ?? `the server answered ${answer.status}`) };
  } catch {
    return { error: "kubectl berth dashboard does not answer; this is the last answer that was read." };
  }
}

function showNode(data) {
  const now = Date.now();
  fill(byId("drawer-facts"), { facts: facts(data, now), node: data.node, blockers: ages(data.story?.blockers, now) },
    ({ facts: lines, node, blockers }) => [node ? state(node) : "", definitions(lines), ...blockerList(blockers)]);
  showFindings(byId("drawer-health"), data.health);
  fill(byId("explain"), data.explanationText, explanationLines);
  showFields(data.fields);
  showIdeas(data.explanation);
  showStory(data, now);
}

/** Shows the parts of the story. Ages change outside of `fill`, so that an open disclosure and the focus stay. */
function showStory({ story, conditions, commands, storyText }, now) {
  const { updates, turns } = story ?? { updates: [], turns: [] };
  fill(byId("drawer-updates"), updates, (all) => all.map(updateSection));
  updates.forEach((update, at) => showTook(byId("drawer-updates").children[at], update.chapters, now));
  fill(byId("drawer-conditions"), conditions, conditionSection);
  fill(byId("drawer-turns"), turns, turnSection);
  fill(byId("drawer-commands"), commands, commandSection);
  fill(byId("drawer-text"), "once", textSection);
  setText(byId("drawer-text").querySelector(".story"), storyText);
}

function state(node) {
  const mark = el("span", {
    class: "sample", "data-phase": node.phase, "data-assessment": node.assessment ?? "None", "data-mark": symbol(node),
    "aria-hidden": "true",
  });
  return el("p", { class: "state" }, mark, el("strong", {}, stateWords(node)), ` ${left(node.estimate)}`);
}

/** Returns the facts about a node, as pairs of name and value. A node that no pool has ever had has no story. */
function facts({ node, story }, now) {
  if (!node) {
    return [["Member of", story?.pool ? `pool ${story.pool}, which this page does not show` : "no pool"]];
  }
  const runs = node.target && node.version !== node.target ? `${node.version || "?"} → ${node.target}` : node.version;
  const place = [
    node.pool ? `pool ${node.pool}` : "no pool", node.wave && `wave ${node.wave}`, node.zone && `zone ${node.zone}`,
    node.role,
  ];
  const pairs = [
    ["Runs", runs],
    ["In this phase for", age(node.since, now)],
    ["Progress", node.progress],
    ["Member of", place.filter(Boolean).join(", ")],
    ["Berth", (story?.berths ?? []).map((berth) => `${berth.name}: ${berth.state}`).join("; ")],
    ["Message", node.message],
    ["Next try", story?.nextTry ? clock(story.nextTry, now) : ""],
  ];
  return pairs.filter(([, value]) => value);
}

function definitions(pairs) {
  return el("dl", {}, ...pairs.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

function ages(blockers, now) {
  return (blockers ?? []).map((one) => ({ ...one, age: age(one.since, now) }));
}

function blockerList(blockers) {
  if (blockers.length === 0) {
    return [];
  }
  const items = blockers.map((one) => el("li", {}, el("strong", {}, one.pod), `: ${one.reason}, for ${one.age}`));
  return [el("h3", {}, "What blocks the drain"), el("ul", { class: "blockers" }, ...items)];
}

/** Returns the lines of an explanation. Their text is exactly the output of `kubectl berth explain`. */
function explanationLines(text) {
  return text.split(/(?<=\n)/).map((line) => {
    const isHead = /^ {2}\S.*:\n$/.test(line);
    const isItem = line.startsWith("    - ");
    return el("span", { class: isHead ? "head" : isItem ? "item" : "line" }, line);
  });
}

function showFields(fields) {
  fill(byId("what-if-fields"), fields, (all) => all.map((field) => el("option", { value: `${field}=` })));
}

/** Shows the changes that would get the node a berth, if they are settings: each can be tried with one click. */
function showIdeas(explanation) {
  const all = [...(explanation?.alone ?? []), ...(explanation?.together ?? [])];
  const ideas = all.map((change) => change.setting).filter(Boolean);
  byId("what-if-ideas").hidden = ideas.length === 0;
  fill(byId("what-if-ideas"), ideas, (list) => list.map((idea) => {
    const button = el("button", { type: "button" }, `Try ${idea}`);
    button.addEventListener("click", () => {
      byId("what-if").value = idea;
      tryOut([idea]);
    });
    return el("li", {}, button);
  }));
}

function showWhatIf(answer) {
  const result = byId("what-if-result");
  result.hidden = false;
  result.classList.toggle("error", Boolean(answer.error));
  const asked = tried.join(" ");
  const { error, explanationText: text, whatIfCommand: command } = answer;
  fill(result, { asked, error, text, command }, (data) => [
    el("h4", {}, `With ${data.asked}`),
    data.error ? el("p", {}, data.error) : el("pre", {}, ...explanationLines(data.text)),
    data.command ? commandLine(data.command.command, data.command.label) : "",
  ]);
  announce(`With ${asked}: ${answer.error ?? answer.explanationText}`);
}

function conditionSection(conditions) {
  const rows = conditions.map((one) => [
    one.type, one.status, one.reason, one.lastTransitionTime ? clock(one.lastTransitionTime, Date.now()) : "",
    one.message,
  ]);
  return rows.length > 0 ? [section("Conditions", table(["Type", "Status", "Reason", "Since", "Message"], rows))] : [];
}

function turnSection(turns) {
  const rows = turns.map((turn) => [
    turn.outcome ?? "", turn.endTime ? clock(turn.endTime, Date.now()) : "", turn.berth,
    turn.drainSeconds === undefined || turn.drainSeconds === null ? "" : span(turn.drainSeconds),
  ]);
  return rows.length > 0 ? [section("Ended turns", table(["Outcome", "Ended", "Berth", "Drain"], rows))] : [];
}

function commandSection(commands) {
  const lines = commands.map((one) => commandLine(one.command, one.label));
  return lines.length > 0 ? [section("Commands", ...lines)] : [];
}

function textSection() {
  const text = el("pre", { class: "story", tabindex: "0", role: "region", "aria-label": "Story as text" });
  return [el("details", {}, el("summary", {}, "The whole story, as kubectl berth node prints it"), text)];
}

function section(title, ...content) {
  return el("section", { "aria-label": title }, el("h3", {}, title), ...content);
}

function version(image) {
  return image?.version ?? image?.digest?.slice(0, 19) ?? "?";
}

/** Returns the chapters of an update as a table. `showTook` fills in how long each took. */
function updateSection(update) {
  const rows = update.chapters.map((chapter) => {
    const bar = el("span", { class: "share", "data-chapter": chapter.name, "aria-hidden": "true" });
    const began = chapter.startTime ? clock(chapter.startTime, Date.now()) : "";
    return [chapter.name, began, el("span", { class: "took" }), bar];
  });
  const from = update.from ? `from ${version(update.from)} ` : "";
  return section(`Update ${from}to ${version(update.to)}`, table(["Chapter", "Began", "Took", "Share"], rows));
}

/** Shows how long the chapters of an update took, and a bar for each chapter's share of the time. */
function showTook(element, chapters, now) {
  const seconds = chapters.map((chapter) => {
    const end = chapter.endTime ? Date.parse(chapter.endTime) : now;
    return Math.max(0, (end - Date.parse(chapter.startTime)) / 1000) || 0;
  });
  const longest = Math.max(1, ...seconds);
  const texts = element.querySelectorAll(".took");
  const bars = element.querySelectorAll(".share");
  chapters.forEach((chapter, at) => {
    setText(texts[at], span(seconds[at]) + (chapter.endTime ? "" : " so far"));
    bars[at].style.width = `${Math.max(1, (100 * seconds[at]) / longest)}%`;
  });
}

function table(heads, rows) {
  const head = el("tr", {}, ...heads.map((text) => el("th", { scope: "col" }, text)));
  const body = rows.map((cells) => el("tr", {}, ...cells.map((cell) => el("td", {}, cell))));
  return el("div", { class: "wide" }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...body)));
}
