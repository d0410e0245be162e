// Symbols and words of phases, assessments and levels. Each has a symbol beside its colour, so that colour is never
// alone. The colours and patterns are in style.css.

/** Phases of a node, in the order of the list: name, symbol, and what happens. */
export const PHASES = [
  { name: "Draining", symbol: "»", words: "its pods are evicted" },
  { name: "Updating", symbol: "↓", words: "its image is pulled and staged" },
  { name: "Rebooting", symbol: "↻", words: "it reboots, or must prove its new image" },
  { name: "Paused", symbol: "‖", words: "a pause holds it back" },
  { name: "Pending", symbol: "○", words: "it waits for its turn" },
  { name: "Updated", symbol: "✓", words: "it runs the desired image" },
];

/** Assessments of a node, the worst first. */
export const ASSESSMENTS = [
  "Degraded", "Unavailable", "Progressing", "Excluded", "Outdated", "Completed",
];

/** Troubles that cover the phase of a node. */
export const TROUBLES = [
  { name: "Degraded", symbol: "!", words: "an admin must act" },
  { name: "Unavailable", symbol: "×", words: "it cannot run new pods" },
];

const POOL_SYMBOLS = {
  Degraded: "!", Progressing: "↻", Excluded: "‖", Pending: "○", Completed: "✓", Empty: "–",
};

const LEVEL_SYMBOLS = { Error: "!", Warning: "▲", Info: "i" };

const PHASE_SYMBOLS = new Map(PHASES.map((phase) => [phase.name, phase.symbol]));
const TROUBLE_SYMBOLS = new Map(TROUBLES.map((trouble) => [trouble.name, trouble.symbol]));

/** Returns the symbol of a node's trouble, or of its phase if it has no trouble. */
export function symbol(node) {
  return TROUBLE_SYMBOLS.get(node.assessment) ?? PHASE_SYMBOLS.get(node.phase) ?? "?";
}

export function poolSymbol(assessment) {
  return POOL_SYMBOLS[assessment] ?? "?";
}

export function levelSymbol(level) {
  return LEVEL_SYMBOLS[level] ?? "?";
}

/** Returns a node's state in words, such as `Draining, Degraded`. */
export function stateWords(node) {
  return TROUBLE_SYMBOLS.has(node.assessment) ? `${node.phase}, ${node.assessment}` : node.phase;
}
