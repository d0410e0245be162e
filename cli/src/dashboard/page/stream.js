// The stream of events from `kubectl berth dashboard`: connects, reconnects, and reports how the connection is. The
// page reads other addresses through this module too, so that it asks only the program that sends its events.

/** Wait before each new connection. */
const RETRY_MS = 2000;
/** A stream without an event for this long is dead: the server sends `alive` every 15 s. */
const SILENT_MS = 40000;
/** Longest wait for a server that accepts the connection but does not answer. */
const ANSWER_MS = 10000;
const CHECK_MS = 1000;

/**
 * The connection: `since` is when it broke, `heard` when the last event came, and `run` identifies the run of the
 * program that sent the first state.
 */
const link = { on: null, run: null, since: null, end: null, why: "", heard: 0 };
/** True while the stream is open and has sent a state of the first `run`. */
let isTrusted = false;

/**
 * Connects to the stream and stays connected. `on.state` and `on.change` get the data of events; `on.link` gets
 * `{ open, since, end, why }`: whether the stream is open, when it broke, and what ended it: `session` (another program
 * answers, or the cookie is not valid any more), `refused` (the server answers but sends no events), or `null`. `why` is
 * the server's reason.
 */
export function connect(on) {
  link.on = on;
  open();
}

/** Reads an address of the program that sends the events. Fails without a stream: another program may answer then. */
export function ask(path) {
  return isTrusted ? fetch(path) : Promise.reject(new Error("no stream"));
}

/** Opens a stream. After a network error the browser itself reconnects it; otherwise it is closed and replaced. */
function open() {
  const source = new EventSource("/api/events");
  const stream = { source, isOpen: false, isOurs: false, waiting: Date.now(), watch: 0 };
  stream.watch = setInterval(() => check(stream), CHECK_MS);
  source.addEventListener("open", () => opened(stream));
  source.addEventListener("alive", () => hear(stream));
  source.addEventListener("state", (event) => stateCame(stream, JSON.parse(event.data)));
  source.addEventListener("change", (event) => changeCame(stream, event));
  source.addEventListener("error", () => failed(stream));
}

function close(stream) {
  clearInterval(stream.watch);
  stream.source.close();
}

function hear(stream) {
  stream.waiting = Date.now();
  if (stream.isOurs) {
    link.heard = stream.waiting;
  }
}

function opened(stream) {
  stream.isOpen = true;
  stream.isOurs = false;
  stream.waiting = Date.now();
  // A page that has shown data is live again only with a state of the same program.
  if (link.run === null) {
    report(true, null);
  }
}

function stateCame(stream, data) {
  const run = data.run ?? "";
  if (link.run !== null && link.run !== run) {
    close(stream);
    report(false, "session");
    return;
  }
  link.run = run;
  stream.isOurs = true;
  hear(stream);
  report(true, null);
  link.on.state(data);
}

function changeCame(stream, event) {
  hear(stream);
  if (stream.isOurs) {
    link.on.change(JSON.parse(event.data));
  }
}

/** Handles a broken stream. After an HTTP error the browser gives up, so this module connects again. */
function failed(stream) {
  stream.isOpen = false;
  stream.isOurs = false;
  stream.waiting = Date.now();
  const isRefused = stream.source.readyState === EventSource.CLOSED;
  report(false, isRefused ? link.end : null);
  if (isRefused) {
    close(stream);
    setTimeout(probe, RETRY_MS);
  }
}

/** Gives up a stream that is silent: a frozen program or a dead tunnel causes no error. */
function check(stream) {
  if (Date.now() - stream.waiting > (stream.isOpen ? SILENT_MS : ANSWER_MS)) {
    close(stream);
    link.since ??= link.heard || Date.now();
    report(false, null);
    setTimeout(open, RETRY_MS);
  }
}

function report(isOpen, end, why = end === null ? "" : link.why) {
  link.since = isOpen ? null : link.since ?? Date.now();
  link.end = end;
  link.why = why;
  isTrusted = isOpen && link.run !== null;
  link.on.link({ open: isOpen, since: link.since, end, why });
}

/** Finds out why the server sends no events, since an EventSource hides the answer, and connects again if possible. */
async function probe() {
  const [end, why] = await refusal();
  report(false, end, why);
  if (end !== "session") {
    // If the probe got a stream, the server needs a moment to notice that it was canceled: streams are limited.
    setTimeout(open, RETRY_MS);
  }
}

/** Returns what ended the stream and the server's reason. */
async function refusal() {
  const timeout = AbortSignal.timeout(ANSWER_MS);
  try {
    const answer = await fetch("/api/events", { signal: timeout });
    if (answer.ok) {
      await answer.body?.cancel();
      return [null, ""];
    }
    // A server that refuses the cookie was started again, and this page cannot log in to it.
    return answer.status === 403 ? ["session", ""] : ["refused", await reason(answer)];
  } catch {
    // The server cannot be reached.
    return [null, ""];
  }
}

async function reason(answer) {
  try {
    const { error } = await answer.json();
    return typeof error === "string" ? error : "";
  } catch {
    return "";
  }
}
