// The page's data about the cluster. The functions change only the store; they do not touch the page.

/** Returns a store without data. */
export function emptyStore() {
  return {
    loaded: false, cluster: "", version: "", command: "kubectl berth", only: null, now: null, fleet: {}, notes: [],
    stale: null, pools: [], nodes: new Map(), health: [],
  };
}

/** Returns an empty record of changes. */
export function noChanges() {
  return { all: false, pools: false, health: false, nodes: new Set(), gone: new Set(), timeline: new Set() };
}

/** Replaces the store's data with a `state` event and returns the changes. */
export function applyState(store, data) {
  for (const field of ["cluster", "version", "command", "only", "now", "fleet", "notes", "stale", "pools", "health"]) {
    if (data[field] !== undefined) {
      store[field] = data[field];
    }
  }
  store.nodes = new Map(data.nodes.map((node) => [node.name, node]));
  store.loaded = true;
  const timeline = new Set(data.pools.map((pool) => pool.name));
  return { ...noChanges(), all: true, pools: true, health: true, timeline };
}

/** Applies a `change` event to the store and returns the changes. */
export function applyChange(store, data) {
  const changes = noChanges();
  for (const field of ["now", "stale", "fleet", "notes", "pools", "health"]) {
    if (data[field] !== undefined) {
      store[field] = data[field];
    }
  }
  changes.pools = Boolean(data.pools ?? data.fleet);
  changes.health = Boolean(data.health);
  for (const name of data.gone ?? []) {
    store.nodes.delete(name);
    changes.gone.add(name);
  }
  for (const node of data.nodes ?? []) {
    store.nodes.set(node.name, node);
    changes.nodes.add(node.name);
  }
  changes.timeline = new Set(data.timeline ?? []);
  return changes;
}

/** Adds `later` changes to `changes`. */
export function merge(changes, later) {
  changes.all ||= later.all;
  changes.pools ||= later.pools;
  changes.health ||= later.health;
  for (const name of later.gone) {
    changes.gone.add(name);
    changes.nodes.delete(name);
  }
  for (const name of later.nodes) {
    changes.nodes.add(name);
    changes.gone.delete(name);
  }
  for (const pool of later.timeline) {
    changes.timeline.add(pool);
  }
}
