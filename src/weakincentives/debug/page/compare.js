// Two runs side by side: figures, steps and final files.

import { changeSections, counts } from "./code.js";
import { loadComparison, loadSessions, splitEnd } from "./data.js";
import { h, recall } from "./dom.js";
import { compact, count, duration, tokenCount, visible } from "./format.js";
import { formatRoute, link } from "./route.js";

export async function compareView(route, steps) {
  const [found, sessions] = await Promise.all([loadComparison(route.a, route.b), loadSessions()]);
  const names = [route.a, route.b];
  return h(
    "article",
    { class: "compare" },
    h("header", { class: "stephead" }, h("h2", {}, "Two runs compared"), pickers(names, sessions, steps)),
    figures(found),
    h("h3", { class: "group" }, "Steps"),
    alignment(found, names),
    h("h3", { class: "group" }, "Final files ", counts(found.diff)),
    changeSections(found.diff, { split: recall("split", "no") === "yes" })
  );
}

function pickers(names, sessions, steps) {
  return h(
    "p",
    { class: "bar" },
    names.map((name, index) => {
      const ends = leaves(steps);
      const known = splitEnd(name).name;
      const options = sessions.flatMap((each) => {
        const entries = [each.name];
        if (each.name === known && ends.length > 1) entries.push(...ends.map((end) => `${each.name}@${end}`));
        return entries;
      });
      if (!options.includes(name)) options.push(name);
      const choose = (event) => (location.hash = link({ a: index ? names[0] : event.target.value, b: index ? event.target.value : names[1] }));
      return h("label", {}, index ? " with " : "Compare ", h("select", { onchange: choose }, options.map((each) => h("option", { value: each, selected: each === name }, visible(each)))));
    })
  );
}

export function leaves(steps) {
  const parents = new Set(steps.map((each) => each.parent));
  return steps.filter((each) => !parents.has(each.n)).map((each) => each.n);
}

function figures({ sessions }) {
  const rows = [
    ["Task", (each) => each.task],
    ["Model", (each) => each.model ?? ""],
    ["Steps", (each) => each.steps],
    ["Tool calls", (each) => each.tool_calls],
    ["Failed calls", (each) => each.failed_calls],
    ["Tokens", (each) => compact(tokenCount(each.tokens))],
    ["Time", (each) => duration(new Date(each.ended_at) - new Date(each.started_at))],
  ];
  return h(
    "table",
    { class: "fields figures" },
    h("thead", {}, h("tr", {}, h("td"), sessions.map((each) => h("th", { scope: "col" }, visible(each.name))))),
    h("tbody", {}, rows.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), sessions.map((each) => h("td", {}, visible(String(value(each) ?? "")))))))
  );
}

function alignment({ pairs, titles }, names) {
  const end = (index, number) => formatRoute({ session: splitEnd(names[index]).name, step: number });
  const side = (index, number) => h("td", {}, number === null ? "" : h("a", { href: end(index, number) }, `#${number} ${visible(titles[index][number])}`));
  return h(
    "table",
    { class: "pairs" },
    h("thead", {}, h("tr", {}, names.map((each) => h("th", { scope: "col" }, visible(each))))),
    h("tbody", {}, pairs.map(([left, right, same]) => h("tr", { class: same ? "same" : "differs" }, side(0, left), side(1, right))))
  );
}
