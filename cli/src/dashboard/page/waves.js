// Numbers of the waves. They are counted from the nodes: the pool's status has numbers too, but it is written later than
// the nodes change.

/** Returns the key of a wave. A pool's name has no slash. */
export function waveKey(pool, wave) {
  return `${pool}/${wave}`;
}

/** Returns `{ updated, total }` of each wave, by its key. */
export function waveCounts(nodes) {
  const counts = new Map();
  for (const { pool, wave, phase } of nodes.values()) {
    const key = waveKey(pool, wave);
    const count = counts.get(key) ?? { updated: 0, total: 0 };
    count.updated += phase === "Updated" ? 1 : 0;
    count.total += 1;
    counts.set(key, count);
  }
  return counts;
}
