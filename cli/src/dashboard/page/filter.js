// The filter of tiles and list: words that a node must contain. Functions of this module depend only on their
// arguments.

/** Fields of a node that a word with a colon can search. */
const FIELDS = new Map([
  ["pool", "pool"], ["wave", "wave"], ["zone", "zone"], ["phase", "phase"], ["is", "assessment"],
  ["version", "version"], ["berth", "berth"], ["role", "role"],
]);

const SEARCHED = ["name", "pool", "wave", "zone", "phase", "assessment", "version", "target", "berth", "message"];

/** Returns a function that is true for each node with all words of the filter. */
export function parse(text) {
  const tests = tokens(text).map(test);
  return (node) => tests.every((one) => one(node));
}

/** Returns the words of a filter. */
export function tokens(text) {
  return text.split(/\s+/).filter((word) => word !== "");
}

/** Returns the filter with the word added, or removed if it has the word already. */
export function toggle(text, word) {
  const words = tokens(text);
  const others = words.filter((other) => other.toLowerCase() !== word.toLowerCase());
  return (others.length < words.length ? others : [...words, word]).join(" ");
}

function test(word) {
  const colon = word.indexOf(":");
  const field = colon > 0 ? FIELDS.get(word.slice(0, colon).toLowerCase()) : undefined;
  if (field) {
    const value = word.slice(colon + 1).toLowerCase();
    return (node) => (node[field] ?? "").toLowerCase().startsWith(value);
  }
  const part = word.toLowerCase();
  return (node) => SEARCHED.some((name) => (node[name] ?? "").toLowerCase().includes(part));
}
