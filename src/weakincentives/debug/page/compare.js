// Two runs side by side: figures, steps and final files.

import { changeSections, counts } from "./code.js";
import { loadComparison, loadSessions, splitEnd } from "./data.js";
import { h, recall } from "./dom.js";
import { compact, duration, inline, tokenCount, visible } from "./format.js";
import { formatRoute, link } from "./route.js";

export async function compareView(route) {
  const [found, sessions] = await Promise.all([loadComparison(route.a, route.b), loadSessions()]);
  const names = [route.a, route.b];
  const ends = names.map(splitEnd);
  const isOne = ends[0].name === ends[1].name;
  const titles = ends.map(({ name, branch, step }) => (isOne && (branch || step) ? (branch ?? `#${step}`) : branch ? `${name} ${branch}` : name));
  return h(
    "article",
    { class: "compare" },
    h("header", { class: "stephead" }, h("h2", {}, isOne ? "Two branches compared" : "Two runs compared"), pickers(names, sessions)),
    figures(found, titles),
    h("h3", { class: "group" }, "Steps"),
    alignment(found, names, titles),
    h("h3", { class: "group" }, "Final files ", counts(found.diff)),
    changeSections(found.diff, { split: recall("split", "no") === "yes" })
  );
}

function pickers(names, sessions) {
  return h(
    "p",
    { class: "bar" },
    names.map((name, index) => {
      const options = sessions.flatMap((each) => {
        const known = Object.keys(each.branches ?? {});
        return known.length > 1 ? known.map((branch) => `${each.name}@${branch}`) : [each.name];
      });
      if (!options.includes(name)) options.push(name);
      const choose = (event) => (location.hash = link({ a: index ? names[0] : event.target.value, b: index ? event.target.value : names[1] }));
      return h("label", {}, index ? " with " : "Compare ", h("select", { onchange: choose }, options.map((each) => h("option", { value: each, selected: each === name }, visible(each)))));
    })
  );
}

function figures({ sessions }, titles) {
  const rows = [
    ["Task", (each) => each.request || each.task],
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
    h("thead", {}, h("tr", {}, h("td"), titles.map((each) => h("th", { scope: "col" }, visible(each))))),
    h("tbody", {}, rows.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), sessions.map((each) => h("td", {}, visible(String(value(each) ?? "")))))))
  );
}

const SAME = 4; // equal steps in a row; more are one line

function alignment({ pairs, titles }, names, columns) {
  const end = (index, number) => formatRoute({ session: splitEnd(names[index]).name, step: number });
  const side = (index, number) => h("td", {}, number === null ? "" : h("a", { href: end(index, number) }, [`#${number} `, inline(titles[index][number])]));
  const row = ([left, right, same]) => h("tr", { class: same ? "same" : "differs" }, side(0, left), side(1, right));
  const rows = runs(pairs).map((run) => {
    if (!run[0][2] || run.length <= SAME) return run.map(row);
    const button = h("button", { type: "button", class: "small", onclick: () => folded.replaceWith(...run.map(row)) }, `${run.length.toLocaleString("en")} equal steps, #${run[0][0]} to #${run.at(-1)[0]}`);
    const folded = h("tr", { class: "same" }, h("td", { colspan: 2 }, button));
    return folded;
  });
  return h(
    "table",
    { class: "pairs" },
    h("thead", {}, h("tr", {}, columns.map((each) => h("th", { scope: "col" }, visible(each))))),
    h("tbody", {}, rows)
  );
}

// Neighbours that are all the same, or all differ.
function runs(pairs) {
  const found = [];
  for (const each of pairs) {
    if (found.length && found.at(-1)[0][2] === each[2]) found.at(-1).push(each);
    else found.push([each]);
  }
  return found;
}
