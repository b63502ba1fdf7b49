// The file tree as it was at a step, and one file of it.

import { sourceTable } from "./code.js";
import { isOffline, loadFile, loadTree, rawAddress } from "./data.js";
import { h, replace } from "./dom.js";
import { size, visible, visiblePath } from "./format.js";
import { link } from "./route.js";

export async function filesView(step, route, steps) {
  const tree = await loadTree(step.n);
  const viewer = h("div", { class: "viewer", "aria-live": "polite" });
  const changed = new Map(Object.entries(step.files));
  const total = tree.entries.filter((each) => each[1] === "f").length;
  const panel = h(
    "div",
    { class: "tree" },
    h("p", { class: "quiet" }, `${total.toLocaleString("en")} files`, tree.truncated ? ", and more that are not listed" : ""),
    directory(nest(tree.entries), "", { step: step.n, selected: route.file, changed })
  );
  if (route.file === undefined) replace(viewer, h("p", { class: "empty" }, total ? "Choose a file." : "The workspace is empty."));
  else await showFile(viewer, step, route, steps);
  return h("div", { class: "files" }, panel, viewer);
}

function nest(entries) {
  const root = new Map();
  const directories = new Map([["", root]]);
  for (const [path, kind, bytes] of entries) {
    const at = path.lastIndexOf("/");
    const parent = directories.get(at < 0 ? "" : path.slice(0, at));
    if (parent === undefined) continue;
    const children = kind === "d" ? new Map() : null;
    if (children) directories.set(path, children);
    parent.set(path.slice(at + 1), { path, kind, bytes, children });
  }
  return root;
}

function directory(children, path, context) {
  const sorted = [...children.entries()].sort(([a, x], [b, y]) => (x.children === null) - (y.children === null) || (a < b ? -1 : 1));
  return h("ul", {}, sorted.map(([name, entry]) => h("li", {}, entry.children ? folder(name, entry, context) : leaf(name, entry, context))));
}

function folder(name, entry, context) {
  const inside = `${entry.path}/`;
  const isOpen = context.selected?.startsWith(inside) || [...context.changed.keys()].some((each) => each.startsWith(inside));
  const body = h("div");
  const unfold = () => {
    if (!body.hasChildNodes()) body.append(directory(entry.children, entry.path, context));
  };
  if (isOpen) unfold();
  const element = h("details", { open: isOpen }, h("summary", {}, visiblePath(name)), body);
  element.addEventListener("toggle", () => element.open && unfold());
  return element;
}

function leaf(name, entry, { step, selected, changed }) {
  return h(
    "a",
    { href: link({ step, view: "files", file: entry.path }), "aria-current": selected === entry.path ? "true" : undefined, class: changed.has(entry.path) ? "changed" : undefined },
    changed.has(entry.path) ? h("span", { class: `letter ${changed.get(entry.path)}` }, changed.get(entry.path)) : null,
    visiblePath(name),
    entry.kind === "s" || entry.kind === "l" ? h("span", { class: "quiet" }, " link") : null
  );
}

async function showFile(viewer, step, route, steps) {
  const path = route.file;
  let found;
  try {
    found = await loadFile(step.n, path);
  } catch (error) {
    replace(viewer, h("h3", { class: "path" }, visiblePath(path)), h("p", { class: "empty" }, error.message));
    return;
  }
  const raw = rawAddress(step.n, path);
  const touched = steps.filter((each) => each.paths.includes(path));
  replace(
    viewer,
    h(
      "div",
      { class: "filehead" },
      h("h3", { class: "path" }, visiblePath(path)),
      h("span", { class: "quiet" }, [size(found.size), found.permissions, found.language].filter(Boolean).join(" · ")),
      raw && found.kind !== "link" && found.kind !== "directory" ? h("a", { href: raw, download: "" }, "Download") : null
    ),
    touched.length ? h("p", { class: "touched" }, "Changed at ", touched.map((each) => [h("a", { href: link({ step: each.n, view: "diff", file: path }) }, `#${each.n}`), " "])) : null,
    fileBody(found, step, route, raw)
  );
  document.getElementById(`line-${route.line}`)?.scrollIntoView({ block: "center" });
}

function fileBody(found, step, route, raw) {
  switch (found.kind) {
    case "text":
      return textBody(found, step, route);
    case "image":
      return imageBody(found, step, route, raw);
    case "notebook":
      return found.cells.map(cell);
    case "link":
      return h("p", {}, "A link to ", h("code", {}, visiblePath(found.target)));
    case "directory":
      return h("p", { class: "empty" }, "A directory.");
    case "binary":
      return binaryBody(found);
    case "omitted":
      return h("p", { class: "empty" }, "The content is not in this file. Open the recording with wink debug to see it.");
    default:
      return h("p", { class: "empty" }, "Not a regular file.");
  }
}

function textBody(found, step, route) {
  const onlink = (number) => link({ step: step.n, view: "files", file: found.path, line: number });
  const body = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Content of the file" }, sourceTable(found.lines, { first: found.first, marked: route.line, onlink }));
  if (found.lines.length === 0) return h("p", { class: "empty" }, "The file is empty.");
  if (found.next === null) return body;
  return h("div", {}, body, more(body, found, step, onlink));
}

function more(body, found, step, onlink) {
  if (isOffline) return h("p", { class: "empty" }, "Only the beginning is in this file. Open the recording with wink debug to see the rest.");
  const button = h("button", { type: "button", onclick: load }, `Lines up to ${found.next.toLocaleString("en")} are shown. Show more`);
  let next = found.next;
  async function load() {
    const page = await loadFile(step.n, found.path, next);
    body.append(sourceTable(page.lines, { first: page.first, onlink }));
    next = page.next;
    if (next === null) button.remove();
    else button.textContent = `Lines up to ${next.toLocaleString("en")} are shown. Show more`;
  }
  return button;
}

function imageBody(found, step, route, raw) {
  const source = found.data ?? raw;
  return [
    source ? h("img", { src: source, alt: `Picture ${visiblePath(found.path)}`, class: "picture" }) : h("p", { class: "empty" }, "The picture is too large for this file."),
    found.lines ? h("details", {}, h("summary", {}, "Source"), textBody(found, step, route)) : null,
  ];
}

function binaryBody(found) {
  const rows = (found.hex ?? []).map(([offset, bytes, text]) => h("tr", {}, h("td", { class: "number" }, offset), h("td", { class: "code" }, bytes), h("td", { class: "code" }, text)));
  return [h("p", { class: "empty" }, `Binary, ${size(found.size)}. `, rows.length ? "It begins:" : ""), rows.length ? h("table", { class: "source" }, h("tbody", {}, rows)) : null];
}

function cell(each) {
  return h(
    "section",
    { class: `cell ${each.type}` },
    h("p", { class: "quiet" }, each.type === "code" ? "code" : "text"),
    sourceTable(each.lines),
    each.outputs.map((output) => (output.image ? h("img", { src: output.image, alt: "Output of the cell", class: "picture" }) : h("pre", {}, visible(output.text))))
  );
}
