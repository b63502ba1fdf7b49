// Source text and changes, from tokens.

import { h } from "./dom.js";
import { count, size, visible, visiblePath } from "./format.js";
import { link } from "./route.js";

// `marks` are where what changed in the line begins and ends, counted in characters.
export function tokens(line, marks = []) {
  let at = 0;
  return line.map(([name, text]) => {
    const shown = marks.length ? marked(text, at, marks) : visible(text);
    if (marks.length) at += Array.from(text).length;
    return name ? h("span", { class: `t-${name}` }, shown) : shown;
  });
}

function marked(text, at, marks) {
  const parts = [];
  for (const [index, each] of Array.from(text).entries()) {
    const inside = marks.some(([start, stop]) => start <= at + index && at + index < stop);
    if (parts.length && parts.at(-1)[1] === inside) parts.at(-1)[0] += each;
    else parts.push([each, inside]);
  }
  return parts.map(([part, inside]) => (inside ? h("mark", {}, part.trim() ? visible(part) : visible(part).replaceAll(" ", "·").replaceAll("\t", "→\t")) : visible(part)));
}

export function sourceTable(lines, { first = 0, marked, onlink } = {}) {
  const rows = lines.map((line, index) => {
    const number = first + index + 1;
    return h(
      "tr",
      { id: onlink ? `line-${number}` : undefined, class: number === marked ? "marked" : undefined },
      h("td", { class: "number" }, onlink ? h("a", { href: onlink(number), tabindex: -1, "aria-label": `line ${number}` }, number) : number),
      h("td", { class: "code" }, tokens(line))
    );
  });
  return h("table", { class: "source" }, h("tbody", {}, rows));
}

const WORDS = { added: "added", removed: "removed", modified: "changed", "mode-changed": "mode", renamed: "renamed" };
export const LETTERS = { added: "A", removed: "D", modified: "M", "mode-changed": "M", renamed: "R" };

export function changeSections(found, { step, split, selected }) {
  if (found.changes.length === 0) return h("p", { class: "empty" }, "No file changed.");
  return found.changes.map((change) => changeSection(change, { step, split, selected }));
}

function changeSection(change, { step, split, selected }) {
  const section = h(
    "details",
    { class: "change", open: selected === undefined || selected === change.path || found(selected, change), "data-path": change.path },
    h(
      "summary",
      {},
      h("span", { class: `letter ${change.kind}`, title: WORDS[change.kind] }, LETTERS[change.kind]),
      h("span", { class: "path" }, change.source ? `${visiblePath(change.source)} → ` : "", visiblePath(change.path)),
      change.permissions ? h("span", { class: "quiet" }, change.permissions.join(" → ")) : null,
      counts(change)
    ),
    change.omitted ? h("p", { class: "empty" }, omission(change, step)) : null,
    change.hunks.length ? (split ? splitTable(change) : unifiedTable(change)) : null
  );
  return section;
}

function found(selected, change) {
  return selected === change.source;
}

function omission(change, step) {
  const sizes = change.sizes.map((each) => (each === null ? "nothing" : size(each))).join(" → ");
  const target = step && change.kind !== "removed" ? h("a", { href: link({ step, view: "files", file: change.path }) }, "See the file") : null;
  return [`Not shown: ${change.omitted} (${sizes}). `, target];
}

export function counts(change) {
  if (change.insertions === undefined) return null;
  return h(
    "span",
    { class: "counts", "aria-label": `${count(change.insertions, "line")} added, ${count(change.deletions, "line")} removed` },
    h("span", { class: "plus" }, `+${change.insertions}`),
    " ",
    h("span", { class: "minus" }, `−${change.deletions}`)
  );
}

const CLASSES = { "+": "plus", "-": "minus", " ": "same", "\\": "note" };

function unifiedTable(change) {
  const rows = change.hunks.flatMap((hunk) => [
    h("tr", { class: "hunk" }, h("td", { colspan: 4 }, hunk.header)),
    ...hunk.lines.map((line) =>
      h(
        "tr",
        { class: CLASSES[line.sign] },
        h("td", { class: "number" }, line.old ?? ""),
        h("td", { class: "number" }, line.new ?? ""),
        h("td", { class: "sign" }, line.sign === "-" ? "−" : line.sign),
        h("td", { class: "code" }, tokens(line.tokens, line.marks))
      )
    ),
  ]);
  return h("table", { class: "source diff" }, h("tbody", {}, rows));
}

function splitTable(change) {
  const rows = change.hunks.flatMap((hunk) => [
    h("tr", { class: "hunk" }, h("td", { colspan: 4 }, hunk.header)),
    ...pairs(hunk.lines).map(([left, right]) => h("tr", {}, half(left, "old"), half(right, "new"))),
  ]);
  const columns = ["number", "code", "number", "code"].map((name) => h("col", { class: name }));
  return h("table", { class: "source diff split" }, h("colgroup", {}, columns), h("tbody", {}, rows));
}

function half(line, side) {
  if (!line) return [h("td", { class: "number none" }), h("td", { class: "code none" })];
  const name = CLASSES[line.sign];
  return [h("td", { class: `number ${name}` }, line[side] ?? ""), h("td", { class: `code ${name}` }, tokens(line.tokens, line.marks))];
}

// Removed lines stand beside the added lines that follow them.
function pairs(lines) {
  const result = [];
  let removed = [];
  let added = [];
  const flush = () => {
    for (let at = 0; at < Math.max(removed.length, added.length); at++) result.push([removed[at], added[at]]);
    removed = [];
    added = [];
  };
  for (const line of lines) {
    if (line.sign === "-") {
      if (added.length) flush();
      removed.push(line);
    } else if (line.sign === "+") added.push(line);
    else if (line.sign === " ") {
      flush();
      result.push([line, line]);
    }
  }
  flush();
  return result;
}
