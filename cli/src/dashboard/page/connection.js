// The state of the connection, in words: live, stale (the API server is away) or lost (the program is away).

import { announce, byId, setAttribute, setText, showText } from "./dom.js";
import { age, sentence } from "./words.js";

/** Returns the state of the connection for `data-state`. */
export function connectionState(store, link) {
  if (!link.open && link.since !== null) {
    return "lost";
  }
  if (!store.loaded) {
    return "connecting";
  }
  return store.stale ? "stale" : "live";
}

/** Returns the time of the shown data if the data is old, otherwise `null`. */
export function seenAt(store, link) {
  const state = connectionState(store, link);
  if (state === "stale") {
    return store.stale.since;
  }
  return state === "lost" ? new Date(link.since).toISOString() : null;
}

/**
 * Shows the state of the connection. The age is not announced each second: only the state is in the status line. An open
 * drawer hides that line, so the drawer has the text too, and a changed state is announced in it.
 */
export function showConnection(store, link, now) {
  const state = connectionState(store, link);
  const connection = byId("connection");
  if (byId("drawer").open && connection.dataset.state !== state) {
    announce(WORDS[state]);
  }
  setAttribute(connection, "data-state", state);
  setText(connection, WORDS[state]);
  const away = awayText(state, store, link, now);
  showText(byId("away"), away);
  showText(byId("away-in-drawer"), away);
  document.body.classList.toggle("old", state === "stale" || state === "lost");
}

const WORDS = {
  live: "Live",
  connecting: "Connecting…",
  stale: "API server away",
  lost: "Disconnected",
};

/** Why the page gets no events, and what to do. */
const LOST = {
  silent: "kubectl berth dashboard does not answer. If it has ended, start it again; otherwise the page reconnects.",
  session: "this session is over. Start kubectl berth dashboard again.",
  refused: "kubectl berth dashboard sends no events to this page. If many of its pages are open, close some of them.",
};

function lostText({ end, why }) {
  return end === "refused" && why
    ? `kubectl berth dashboard sends no events to this page. ${sentence(why)}` : LOST[end ?? "silent"];
}

function awayText(state, store, link, now) {
  const old = age(seenAt(store, link), now);
  if (state === "stale") {
    const { kinds, why } = store.stale;
    return `You see the cluster as it was ${old} ago: cannot read ${kinds} from the API server (${why}). `
      + "The page updates again as soon as the API server answers.";
  }
  if (state === "lost") {
    const seen = store.loaded ? `You see the cluster as it was ${old} ago` : "Nothing has been read yet";
    return `${seen}: ${lostText(link)}`;
  }
  return "";
}
