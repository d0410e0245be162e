// Helpers for elements. All text is set as text, never as markup: names and messages come from nodes that may lie.

/** Returns the element with this id. */
export function byId(id) {
  return document.getElementById(id);
}

/** Returns a new element. `attributes` are set as attributes; children are elements or strings. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Sets the text of an element if it differs, so that unchanged elements need no layout. */
export function setText(element, text) {
  if (element.textContent !== text) {
    element.textContent = text;
  }
}

/** Sets or (with `null`) removes an attribute if it differs. */
export function setAttribute(element, name, value) {
  if (value === null) {
    element.removeAttribute(name);
  } else if (element.getAttribute(name) !== value) {
    element.setAttribute(name, value);
  }
}

const shown = new WeakMap();

/**
 * Replaces the children of `parent` with those that `build` returns, but only if `data` differs from the last call.
 * Otherwise the children stay, and with them the focus, the selection and open disclosures.
 */
export function fill(parent, data, build) {
  const signature = JSON.stringify(data) ?? "";
  if (shown.get(parent) !== signature) {
    parent.replaceChildren(...build(data));
    // Only now: after an error in `build`, the next call tries again.
    shown.set(parent, signature);
  }
}

/** Shows a text in an element, or hides the element if there is no text. */
export function showText(element, text) {
  setText(element, text ?? "");
  element.hidden = !text;
}

/** Orders the children. A moved element loses its focus, so the others are moved around the one with the focus. */
export function arrange(parent, elements) {
  const isInOrder = elements.every((element, at) => parent.children[at] === element);
  if (isInOrder) {
    return;
  }
  const kept = elements.find((element) => element.contains(document.activeElement));
  const at = elements.indexOf(kept);
  elements.forEach((element, index) => {
    if (element !== kept) {
      parent.insertBefore(element, index < at ? kept : null);
    }
  });
}

const ANNOUNCE_MS = 100;
let announcing = null;
let announced = [];

/**
 * Reads a text to users of a screen reader, together with other texts of the same moment. The line is cleared first: an
 * equal text would not be read again. An open drawer has its own line, because a screen reader reads nothing outside of
 * a modal dialog.
 */
export function announce(text) {
  announced.push(text);
  clearTimeout(announcing);
  const lines = [byId("announce"), byId("announce-in-drawer")];
  lines.forEach((line) => setText(line, ""));
  announcing = setTimeout(() => {
    setText(lines[byId("drawer").open ? 1 : 0], announced.join(". "));
    announced = [];
  }, ANNOUNCE_MS);
}
