// The stream of events from `kubectl berth dashboard`: connects, reconnects, and reports how the connection is.

const RETRY_MS = 2000;

/**
 * Connects to the stream and stays connected. `on.state` and `on.change` get the data of events; `on.link` gets
 * `{ open, since, end }`: whether the stream is open, when it broke, and why the server ended it: `session` (the cookie
 * is not valid any more), `refused` (the server answers but sends no events), or `null`.
 */
export function connect(on, brokenSince = null, end = null) {
  const source = new EventSource("/api/events");
  let since = brokenSince;
  source.addEventListener("open", () => {
    since = null;
    on.link({ open: true, since, end: null });
  });
  source.addEventListener("state", (event) => on.state(JSON.parse(event.data)));
  source.addEventListener("change", (event) => on.change(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    since ??= Date.now();
    on.link({ open: false, since, end });
    // After a network error the browser reconnects. After an HTTP error it gives up, so connect again here.
    if (source.readyState === EventSource.CLOSED) {
      setTimeout(() => reconnect(on, since), RETRY_MS);
    }
  });
}

/** Connects again. A server that refuses the cookie was started again, and this page cannot log in to it. */
async function reconnect(on, since) {
  let end = null;
  try {
    const answer = await fetch("/", { method: "HEAD" });
    end = answer.status === 403 ? "session" : "refused";
  } catch {
    // The server cannot be reached.
  }
  on.link({ open: false, since, end });
  if (end !== "session") {
    connect(on, since, end);
  }
}
