// The list of steps, with branches drawn beside it.

import { h, replace, svg } from "./dom.js";
import { clock, compact, duration, stepLabel, tokenCount, visible } from "./format.js";
import { ROW, edges, gutterWidth, layout, position } from "./graph.js";
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

export class StepList {
  constructor() {
    this.steps = [];
    this.filter = "all";
    this.body = h("div", { class: "steps" });
    this.bar = h("div", { class: "filters", role: "group", "aria-label": "Filter the steps" });
    this.element = h("nav", { class: "timeline", "aria-label": "Steps" }, this.bar, this.body);
  }

  show(steps) {
    this.steps = steps;
    const { columns, width } = layout(steps);
    this.columns = columns;
    this.width = width;
    this.render();
  }

  render() {
    this.linked = linkTo("");
    this.renderFilters();
    const shown = this.visibleSteps();
    const isWhole = this.filter === "all";
    const gutter = isWhole ? gutterWidth(this.width) : 12;
    const rows = shown.map((step) => this.row(step, gutter));
    const list = h("ol", { class: "rows" }, rows);
    replace(this.body, isWhole ? this.drawing(gutter) : null, shown.length ? list : h("p", { class: "empty" }, "No such steps."));
    this.mark();
  }

  renderFilters() {
    const names = { all: "All", tools: "Calls", changes: "Changes", failed: "Failed" };
    replace(
      this.bar,
      Object.entries(names).map(([name, label]) => {
        const number = this.steps.filter(FILTERS[name]).length;
        const choose = () => {
          this.filter = name;
          this.render();
        };
        return h("button", { type: "button", class: "chip", "aria-pressed": String(this.filter === name), onclick: choose }, label, " ", h("span", { class: "quiet" }, number));
      })
    );
  }

  visibleSteps() {
    return this.steps.filter(FILTERS[this.filter]);
  }

  row(step, gutter) {
    const facts = [
      `#${step.n}`,
      clock(step.at),
      step.command && !step.command_failed ? visible(step.command) : "",
      duration(step.ms),
      step.client ? visible(step.client) : "",
      tokenCount(step.tokens) && step.kind !== "end" ? `${compact(tokenCount(step.tokens))} tok` : "",
    ].filter(Boolean);
    const row = h(
      "a",
      { class: `row kind-${step.kind}${step.ok ? "" : " failed"}`, href: `${this.linked}${step.n}`, "data-step": step.n },
      h("span", { class: "line" }, h("span", { class: "kind" }, stepLabel(step)), h("span", { class: "title" }, visible(step.title)), this.marks(step)),
      h("span", { class: "facts" }, facts.join(" · "), step.branch ? h("span", { class: "tag" }, visible(step.branch)) : null)
    );
    row.style.paddingLeft = `${gutter}px`;
    return h("li", {}, row);
  }

  marks(step) {
    if (step.rolled_back) return h("span", { class: "mark bad" }, "rolled back");
    if (!step.ok) return h("span", { class: "mark bad" }, "failed");
    if (step.command_failed) return h("span", { class: "mark bad", title: visible(step.command) }, `✗ ${visible(shortEnding(step.command))}`);
    return step.changes ? h("span", { class: "mark" }, `${step.changes} file${step.changes === 1 ? "" : "s"}`) : null;
  }

  drawing(gutter) {
    const lines = edges(this.steps, this.columns).map((d) => svg("path", { d }));
    const dots = this.steps.map((step) => {
      const [cx, cy] = position(this.columns.get(step.n), step.n - 1);
      return svg("circle", { cx, cy, r: 4, class: `kind-${step.kind}${step.ok && !step.command_failed ? "" : " failed"}` });
    });
    const height = this.steps.length * ROW;
    return svg("svg", { class: "graph", width: gutter, height, "aria-hidden": "true" }, lines, dots);
  }

  mark({ scroll = true } = {}) {
    const { step } = currentRoute();
    this.body.querySelector("[aria-current]")?.removeAttribute("aria-current");
    const row = this.body.querySelector(`[data-step="${step}"]`);
    row?.setAttribute("aria-current", "true");
    if (scroll) row?.scrollIntoView({ block: "nearest" });
    if (this.linked !== linkTo("")) {
      for (const each of this.body.querySelectorAll("a.row")) each.setAttribute("href", linkTo(each.dataset.step));
      this.linked = linkTo("");
    }
  }

  neighbour(number, distance) {
    const shown = this.visibleSteps();
    const at = shown.findIndex((each) => each.n === number);
    return shown[Math.max(0, Math.min(shown.length - 1, at + distance))]?.n;
  }
}
