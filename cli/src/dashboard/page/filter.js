// The filter of tiles and list: words that a node must contain. Functions of this module depend only on their
// arguments.

/** Fields of a node that a word with a colon can search. */
const FIELDS = new Map([
  ["pool", "pool"], ["wave", "wave"], ["zone", "zone"], ["phase", "phase"], ["is", "assessment"],
  ["version", "version"], ["berth", "berth"], ["role", "role"],
]);

const SEARCHED = ["name", "pool", "wave", "zone", "phase", "assessment", "version", "target", "berth", "message"];

/** Returns a function that is true for each node with all words of the filter. Words of one field are alternatives. */
export function parse(text) {
  const tests = new Map();
  tokens(text).forEach((word, at) => {
    const key = fieldOf(word) ?? at;
    tests.set(key, [...(tests.get(key) ?? []), test(word)]);
  });
  return (node) => [...tests.values()].every((alternatives) => alternatives.some((one) => one(node)));
}

/** Returns the field of a node that a word with a colon searches, or `undefined`. */
function fieldOf(word) {
  const colon = word.indexOf(":");
  return colon > 0 ? FIELDS.get(word.slice(0, colon).toLowerCase()) : undefined;
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
  const field = fieldOf(word);
  if (field) {
    const value = word.slice(word.indexOf(":") + 1).toLowerCase();
    return (node) => (node[field] ?? "").toLowerCase().startsWith(value);
  }
  const part = word.toLowerCase();
  return (node) => SEARCHED.some((name) => (node[name] ?? "").toLowerCase().includes(part));
}
