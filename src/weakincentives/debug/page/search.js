// Search over the steps, and over the files of the step that is shown.

import { search } from "./data.js";
import { h, replace } from "./dom.js";
import { visible, visiblePath } from "./format.js";
import { currentRoute, link } from "./route.js";

const DELAY = 180;

export class SearchPanel {
  constructor(onclose) {
    this.onclose = onclose;
    this.input = h("input", { type: "search", id: "search", placeholder: "Search steps and files", "aria-label": "Search steps and files", autocomplete: "off", spellcheck: "false" });
    this.results = h("div", { class: "results", hidden: true, role: "region", "aria-label": "Search results", "aria-live": "polite" });
    this.input.addEventListener("input", () => this.schedule());
    this.input.addEventListener("keydown", (event) => this.onkey(event));
    this.results.addEventListener("keydown", (event) => this.onkey(event));
    this.number = 0;
  }

  schedule() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.run(), DELAY);
  }

  async run() {
    const text = this.input.value.trim();
    const number = ++this.number;
    if (!text) return this.close();
    this.results.hidden = false;
    replace(this.results, h("p", { class: "empty" }, "Searching…"));
    let found;
    try {
      found = await search(text, currentRoute().step);
    } catch (error) {
      found = { steps: [], names: [], lines: [], error: error.message };
    }
    if (number === this.number) this.show(found, text);
  }

  show(found, text) {
    const groups = [
      group("Steps", found.steps.map((each) => item({ step: each.n, view: "step", file: null }, `#${each.n}`, each.text))),
      group("File names", found.names.map((path) => item({ view: "files", file: path }, "", visiblePath(path)))),
      group("In files of this step", found.lines.map((each) => item({ view: "files", file: each.path, line: each.line }, `${visiblePath(each.path)}:${each.line}`, each.text))),
    ];
    const total = found.steps.length + found.names.length + found.lines.length;
    const message = found.error ?? (total ? (found.truncated ? "There is more; search for something longer." : "") : `Nothing found for “${visible(text)}”.`);
    replace(this.results, message ? h("p", { class: "empty" }, message) : null, groups);
  }

  onkey(event) {
    if (event.key === "Escape") {
      this.close();
      this.input.value = "";
      this.input.blur();
      this.onclose();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const links = [this.input, ...this.results.querySelectorAll("a")];
      const at = links.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1);
      links[Math.max(0, Math.min(links.length - 1, at))].focus();
    } else if (event.key === "Enter" && document.activeElement === this.input) {
      this.results.querySelector("a")?.click();
    } else return;
    event.stopPropagation();
    if (event.key !== "Enter") event.preventDefault();
  }

  close() {
    this.number++;
    this.results.hidden = true;
    replace(this.results);
  }
}

function group(title, items) {
  return items.length ? h("section", {}, h("h3", {}, `${title} `, h("span", { class: "quiet" }, items.length)), h("ul", {}, items)) : null;
}

function item(target, place, text) {
  return h("li", {}, h("a", { href: link(target) }, place ? h("span", { class: "quiet" }, place, " ") : null, visible(text)));
}
