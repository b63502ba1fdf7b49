// The keyboard, and the page that explains it.

import { h } from "./dom.js";

const HELP = [
  ["j, ↓", "next step"],
  ["k, ↑", "previous step"],
  ["n, p", "next, previous step that changed files"],
  ["g, G", "first, last step"],
  ["0", "the summary of the run"],
  ["l, →", "next view"],
  ["h, ←", "previous view"],
  ["1 to 6", "overview, changes, files, state, conversation, use it"],
  ["/", "search"],
  ["s", "changes side by side, or one below the other"],
  ["t", "light or dark"],
  ["?", "this help"],
  ["Esc", "close help or search"],
];

export function helpDialog() {
  const rows = HELP.map(([keys, meaning]) => h("tr", {}, h("th", { scope: "row" }, keys.split(", ").map((key, index) => [index ? " " : "", h("kbd", {}, key)])), h("td", {}, meaning)));
  const close = h("button", { type: "button", onclick: () => dialog.close() }, "Close");
  const dialog = h("dialog", { "aria-labelledby": "help-title" }, h("h2", { id: "help-title" }, "Keyboard"), h("table", {}, h("tbody", {}, rows)), close);
  return dialog;
}

export function listenToKeys(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const target = event.target;
    if (target.matches("input, select, textarea")) return;
    const isArrow = event.key.startsWith("Arrow");
    if (isArrow && target.closest(".scroll, pre, .tree")) return; // they scroll there
    const action = actions[event.key];
    if (action === undefined) return;
    event.preventDefault();
    action();
  });
}
