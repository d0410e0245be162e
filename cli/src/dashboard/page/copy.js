// Commands to copy. The page changes nothing: each act is a command for the admin's own terminal.

import { announce, el } from "./dom.js";

const SHOWN_MS = 2000;

/** Returns a command with its copy button. `label` says what the command does. */
export function commandLine(command, label) {
  const button = el("button", { type: "button", "data-copy": command, "aria-label": `Copy: ${command}` }, "Copy");
  const words = label ? el("span", { class: "label" }, label) : null;
  return el("div", { class: "command" }, words, el("code", {}, command), button);
}

/** Handles clicks on all copy buttons of the page. */
export function listenForCopies() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("[data-copy]");
    if (button) {
      copy(button);
    }
  });
}

async function copy(button) {
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    report(button, "Copied");
  } catch {
    // The browser refuses the clipboard: select the text, so that the admin can copy it with the keyboard.
    const code = button.parentElement.querySelector("code");
    if (code) {
      getSelection().selectAllChildren(code);
    }
    report(button, "Press Ctrl+C");
  }
}

function report(button, text) {
  button.textContent = text;
  announce(text);
  setTimeout(() => {
    button.textContent = "Copy";
  }, SHOWN_MS);
}
