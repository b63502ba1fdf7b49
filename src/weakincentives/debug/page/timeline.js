// The list of steps, with branches drawn beside it.

import { h, replace, svg } from "./dom.js";
import { clock, compact, duration, inline, stepLabel, tokenCount, visible } from "./format.js";
import { ROW, edge, gutterWidth, layout, position } from "./graph.js";
import { currentRoute, formatRoute } from "./route.js";

export const FILTERS = {
  all: () => true,
  tools: (step) => step.kind === "tool",
  changes: (step) => step.changes > 0,
  failed: (step) => !step.ok || step.command_failed,
};

// "failed (exit 1)" is "exit 1", and "timed out (exit -9)" is "timed out": the row is narrow.
function shortEnding(ending) {
  return ending.replace(/^failed \((.*)\)$/, "$1").replace(/ \(exit .*\)$/, "");
}

// The same view of another step; its number comes last, so that links are cheap.
function linkTo(number) {
  const { session, view } = currentRoute();
  return `${formatRoute({ session, view })}&step=${number}`;
}

// The beginning and the end say nothing that the steps between them do not: they are listed only
// if they undo something, failed, or stand alone.
function listed(step, parents) {
  if (step.kind === "end") return !step.ok || step.parent === null;
  return step.kind !== "start" || step.undoes !== null || step.changes > 0 || !parents.has(step.n);
}

const AROUND = 12; // rows above and below those that are seen

// Only the rows near those that are seen exist, so that 100,000 steps are as quick as ten.
export class StepList {
  constructor() {
    this.steps = [];
    this.shown = [];
    this.filter = "all";
    this.rows = new Map();
    this.drawing = svg("svg", { class: "graph", "aria-hidden": "true" });
    this.list = h("ol", { class: "rows" });
    this.home = h("a", { class: "home" }, "Summary");
    this.body = h("div", { class: "steps" }, h("div", { class: "canvas" }, this.drawing, this.list));
    this.bar = h("div", { class: "filters", role: "group", "aria-label": "Filter the steps" });
    this.element = h("nav", { class: "timeline", "aria-label": "Steps" }, this.home, this.bar, this.body);
    this.body.addEventListener("scroll", () => this.fill());
    new ResizeObserver(() => this.fill()).observe(this.body);
  }

  show(steps) {
    this.steps = steps;
    const parents = new Set(steps.map((each) => each.parent));
    this.all = [];
    this.parents = [];
    this.tags = new Map();
    const rowOf = new Map([[null, -1]]); // of the step itself, or of the one before it that is listed
    const pending = new Map(); // names of branches whose first step is not listed
    for (const step of steps) {
      const tag = step.branch ?? pending.get(step.parent);
      const above = rowOf.get(step.parent) ?? -1;
      if (listed(step, parents)) {
        rowOf.set(step.n, this.all.length);
        this.all.push(step);
        this.parents.push(above);
        if (tag) this.tags.set(step.n, tag);
      } else {
        rowOf.set(step.n, above);
        if (tag) pending.set(step.n, tag);
      }
    }
    Object.assign(this, layout(this.parents));
    this.render();
  }

  render() {
    this.linked = linkTo("");
    this.renderFilters();
    this.shown = this.all.filter(FILTERS[this.filter]);
    this.isWhole = this.filter === "all";
    this.gutter = this.isWhole ? gutterWidth(this.width) : 12;
    // branches draw long lines: they are few, and each may cross what is seen
    this.long = this.isWhole ? this.parents.flatMap((parent, row) => (parent >= 0 && row - parent > 1 ? [row] : [])) : [];
    this.list.style.height = `${this.shown.length * ROW}px`;
    this.drawing.setAttribute("width", this.gutter);
    this.drawing.setAttribute("height", this.shown.length * ROW);
    this.rows.clear();
    this.list.replaceChildren();
    this.list.hidden = this.shown.length === 0;
    this.range = null;
    this.fill();
    this.mark();
  }

  renderFilters() {
    const names = { all: "All", tools: "Calls", changes: "Changes", failed: "Failed" };
    replace(
      this.bar,
      Object.entries(names).map(([name, label]) => {
        const number = this.all.filter(FILTERS[name]).length;
        const choose = () => {
          this.filter = name;
          this.render();
        };
        return h("button", { type: "button", class: "chip", "aria-pressed": String(this.filter === name), onclick: choose }, label, " ", h("span", { class: "quiet" }, number.toLocaleString("en")));
      })
    );
  }

  // Make the rows near those that are seen, and drop the others.
  fill() {
    const first = Math.max(0, Math.floor(this.body.scrollTop / ROW) - AROUND);
    const last = Math.min(this.shown.length - 1, Math.ceil((this.body.scrollTop + (this.body.clientHeight || 800)) / ROW) + AROUND);
    if (this.range && this.range[0] === first && this.range[1] === last) return;
    this.range = [first, last];
    for (const [row, each] of this.rows) {
      if (row >= first && row <= last) continue;
      each.remove();
      this.rows.delete(row);
    }
    for (let row = last; row >= first; row--) {
      if (this.rows.has(row)) continue;
      const made = this.row(this.shown[row], row);
      this.rows.set(row, made);
      this.list.insertBefore(made, this.rows.get(row + 1) ?? null);
    }
    this.draw(first, last);
    this.markCurrent();
  }

  row(step, index) {
    const facts = [
      `#${step.n}`,
      clock(step.at),
      step.command && !step.command_failed ? visible(step.command) : "",
      duration(step.ms),
      step.client ? visible(step.client) : "",
      tokenCount(step.tokens) && step.kind !== "end" ? `${compact(tokenCount(step.tokens))} tok` : "",
    ].filter(Boolean);
    const tag = this.tags.get(step.n);
    const link = h(
      "a",
      { class: `row kind-${step.kind}${step.ok ? "" : " failed"}`, href: `${this.linked}${step.n}`, "data-step": step.n },
      h("span", { class: "line" }, h("span", { class: "kind" }, stepLabel(step)), h("span", { class: "title" }, inline(step.title)), this.marks(step)),
      h("span", { class: "facts" }, facts.join(" · "), tag ? h("span", { class: "tag" }, visible(tag)) : null)
    );
    link.style.paddingLeft = `${this.gutter}px`;
    const made = h("li", { "aria-setsize": this.shown.length, "aria-posinset": index + 1 }, link);
    made.style.top = `${index * ROW}px`;
    return made;
  }

  marks(step) {
    if (step.rolled_back) return h("span", { class: "mark bad" }, "rolled back");
    if (!step.ok) return h("span", { class: "mark bad" }, "failed");
    if (step.command_failed) return h("span", { class: "mark bad", title: visible(step.command) }, `✗ ${visible(shortEnding(step.command))}`);
    return step.changes ? h("span", { class: "mark" }, `${step.changes} file${step.changes === 1 ? "" : "s"}`) : null;
  }

  draw(first, last) {
    if (!this.isWhole) return replace(this.drawing);
    const lines = [];
    const add = (row) => lines.push(svg("path", { d: edge(row, this.parents[row], this.columns) }));
    for (const row of this.long) if (this.parents[row] <= last && row >= first) add(row);
    const dots = [];
    for (let row = first; row <= last; row++) {
      if (this.parents[row] >= 0 && row - this.parents[row] === 1) add(row);
      const step = this.shown[row];
      const [cx, cy] = position(this.columns[row], row);
      dots.push(svg("circle", { cx, cy, r: 4, class: `kind-${step.kind}${step.ok && !step.command_failed ? "" : " failed"}` }));
    }
    replace(this.drawing, lines, dots);
  }

  mark({ scroll = true } = {}) {
    const { session, step } = currentRoute();
    this.home.setAttribute("href", formatRoute({ session }) || "#");
    if (step === undefined) this.home.setAttribute("aria-current", "true");
    else this.home.removeAttribute("aria-current");
    const row = this.shown.findIndex((each) => each.n === step);
    if (scroll && row >= 0) {
      const { scrollTop, clientHeight } = this.body;
      if (row * ROW < scrollTop) this.body.scrollTop = row * ROW;
      else if ((row + 1) * ROW > scrollTop + clientHeight) this.body.scrollTop = (row + 1) * ROW - clientHeight;
    }
    this.fill();
    this.markCurrent();
  }

  markCurrent() {
    const { step } = currentRoute();
    const linked = linkTo("");
    for (const each of this.list.querySelectorAll("a.row")) {
      if (linked !== this.linked) each.setAttribute("href", `${linked}${each.dataset.step}`);
      if (each.dataset.step === String(step)) each.setAttribute("aria-current", "true");
      else each.removeAttribute("aria-current");
    }
    this.linked = linked;
  }

  neighbour(number, distance) {
    const at = this.shown.findIndex((each) => each.n >= number);
    const from = at < 0 ? this.shown.length : at;
    const isExact = this.shown[from]?.n === number;
    const target = isExact || distance < 0 ? from + distance : from;
    return this.shown[Math.max(0, Math.min(this.shown.length - 1, target))]?.n;
  }
}
