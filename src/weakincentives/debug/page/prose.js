// What models and commands wrote: Markdown from nodes, and output with its colours.

import { tokens } from "./code.js";
import { h } from "./dom.js";
import { visible } from "./format.js";

const TAGS = new Set(["p", "ul", "li", "blockquote", "hr", "table", "thead", "tbody", "tr", "th", "td", "strong", "em", "s", "br", "code"]);
const WEB = /^(https?|mailto):/i;

// Nodes are data: a text, or a name and what is in it. Only these names become elements.
export function prose(nodes, text = "") {
  return Array.isArray(nodes) ? h("div", { class: "prose" }, nodes.map(element)) : output(text);
}

function element(node) {
  if (typeof node === "string") return visible(node);
  const [tag, ...inside] = node;
  if (tag === "pre") return h("pre", { tabindex: 0 }, Array.isArray(inside[0]) ? inside[0].map((line) => [tokens(line), "\n"]) : visible(inside[0]));
  if (tag === "a" || tag === "span") return anchor(tag, inside[0], inside.slice(1).map(element));
  if (tag === "ol") return h("ol", { start: Number(inside[0]) || 1 }, inside.slice(1).map(element));
  if (/^h[1-6]$/.test(tag)) return h("h4", {}, inside.map(element));
  if (tag === "table") return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table" }, h("table", {}, inside.map(element)));
  return TAGS.has(tag) ? h(tag, {}, inside.map(element)) : inside.map(element);
}

// A link to the web says where it leads; any other is text.
function anchor(tag, target, inside) {
  if (tag === "a" && WEB.test(target)) return h("a", { href: target, title: visible(target), target: "_blank", rel: "noopener noreferrer nofollow" }, inside);
  return [inside, h("span", { class: "quiet" }, ` (${visible(target)})`)];
}

const HUNK = /^@@ -\d/m;

// What was printed, from tokens if it has colours. Without any, the lines of a patch have colours.
export function output(value, name = "") {
  const body = Array.isArray(value) ? tokens(value) : HUNK.test(String(value)) ? patched(String(value)) : visible(String(value));
  return h("pre", { class: `text ${name}`, tabindex: 0 }, body);
}

function patched(text) {
  let isInside = false;
  return text.split("\n").map((line, index) => {
    isInside ||= HUNK.test(line);
    const name = !isInside ? "" : line.startsWith("@@") ? "quiet" : line.startsWith("+") ? "plus" : line.startsWith("-") ? "minus" : "";
    return [index ? "\n" : "", name ? h("span", { class: name }, visible(line)) : visible(line)];
  });
}
