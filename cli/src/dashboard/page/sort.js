// Order of nodes. Functions of this module depend only on their arguments.

import { ASSESSMENTS, PHASES } from "./looks.js";
import { estimateSeconds } from "./words.js";

const collator = new Intl.Collator("en", { numeric: true });
const ASSESSMENT_RANKS = new Map(ASSESSMENTS.map((name, rank) => [name, rank]));
const PHASE_RANKS = new Map(PHASES.map((phase, rank) => [phase.name, rank]));

/** Compares two names, with numbers in them by their value. */
export function byName(a, b) {
  return collator.compare(a, b) || (a < b ? -1 : Number(a > b));
}

/** Returns the key of a node for a column. Keys of one column are all numbers or all texts. */
function key(node, column) {
  switch (column) {
    case "assessment":
      return ASSESSMENT_RANKS.get(node.assessment) ?? ASSESSMENTS.length;
    case "phase":
      return PHASE_RANKS.get(node.phase) ?? PHASES.length;
    case "estimate":
      return estimateSeconds(node.estimate);
    case "since":
      return -(Date.parse(node.since) || 0);
    default:
      return node[column] ?? "";
  }
}

/** Returns the rank of each name in the order of names. Comparing ranks is much faster than comparing names. */
export function nameRanks(names) {
  return new Map([...names].sort(byName).map((name, rank) => [name, rank]));
}

/** Returns the nodes sorted by a column. Nodes with the same key are in the order of assessment, phase and name. */
export function sorted(nodes, column, isDescending, ranks) {
  const sign = isDescending ? -1 : 1;
  const rows = nodes.map((node) => {
    const name = ranks.get(node.name) ?? ranks.size;
    const state = key(node, "assessment") * 16 + key(node, "phase");
    return { node, key: column === "name" ? name : key(node, column), state, name };
  });
  rows.sort((a, b) => sign * compareKeys(a.key, b.key) || a.state - b.state || a.name - b.name);
  return rows.map((row) => row.node);
}

function compareKeys(a, b) {
  if (typeof a === "number") {
    return a === b ? 0 : a - b;
  }
  // An empty text sorts last.
  if (a === "" || b === "") {
    return Number(a === "") - Number(b === "");
  }
  return a === b ? 0 : byName(a, b);
}
