// The URL fragment keeps the view: `#/nodes`, `#/timeline/POOL`, `#/health`, `#/node/NAME`.

/** Returns the view of a fragment and the name in it. Unknown fragments show the nodes. */
export function route(fragment) {
  const [, view, encoded] = /^#\/(nodes|timeline|health|node)(?:\/(.*))?$/.exec(fragment) ?? [];
  return { view: view ?? "nodes", name: encoded ? decoded(encoded) : null };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Returns the fragment of a view. */
export function fragment(view, name) {
  return name ? `#/${view}/${encodeURIComponent(name)}` : `#/${view}`;
}
