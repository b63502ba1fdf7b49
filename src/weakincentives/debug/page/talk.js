// The conversation as one reads it: the system prompt folded, a call in a line, its output below.

import { loadMessages } from "./data.js";
import { h } from "./dom.js";
import { count, duration, visible, visiblePath } from "./format.js";
import { output, prose } from "./prose.js";
import { link } from "./route.js";

const ROLES = { system: "System prompt", user: "User", assistant: "Model", note: "" };
const FOLDED = 14; // lines of output; of more, only the first are shown
const MAX_ARGUMENT = 80;

// Messages of a page that is loaded; `first` undefined is the end of the conversation.
export async function talk(end, { first, from = Infinity } = {}) {
  const page = await loadMessages(end, first);
  const list = h("ol", { class: "talk" });
  const state = { end, from, list, first: page.first, next: page.first + page.messages.length, total: page.total };
  const earlier = h("button", { type: "button", class: "more", onclick: () => loadMore(state, -1, earlier, later) });
  const later = h("button", { type: "button", class: "more", onclick: () => loadMore(state, 1, earlier, later) });
  list.append(...entries(page.messages, state));
  label(state, earlier, later);
  const element = h("div", { class: "conversation" }, h("p", { class: "empty nothing" }, "There is no conversation yet."), earlier, list, later);
  element.grow = (newEnd) => grow(state, newEnd, earlier, later);
  return element;
}

async function loadMore(state, direction, earlier, later) {
  const button = direction < 0 ? earlier : later;
  button.disabled = true;
  const at = direction < 0 ? Math.max(0, state.first - 200) : state.next;
  const page = await loadMessages(state.end, at);
  const shown = direction < 0 ? page.messages.slice(0, state.first - at) : page.messages;
  state.list[direction < 0 ? "prepend" : "append"](...entries(shown, state));
  if (direction < 0) state.first = at;
  else state.next = at + shown.length;
  state.total = page.total;
  button.disabled = false;
  label(state, earlier, later);
}

function label(state, earlier, later) {
  earlier.hidden = state.first === 0;
  earlier.textContent = `Earlier messages (${state.first.toLocaleString("en")})`;
  later.hidden = state.next >= state.total;
  later.textContent = `Later messages (${(state.total - state.next).toLocaleString("en")})`;
}

// A session that still runs has new messages: they are added if the last one was shown.
async function grow(state, end, earlier, later) {
  const wasWhole = state.next >= state.total;
  state.end = end;
  if (wasWhole) await loadMore(state, 1, earlier, later);
}

function entries(messages, state) {
  return messages.map((each) => {
    const role = each.role in ROLES || each.role === "tool" ? each.role : "other";
    return h("li", { class: `message role-${role}${each.n >= state.from ? " new" : ""}` }, (ENTRIES[role] ?? said)(each));
  });
}

const ENTRIES = { system: folded, tool: call, note };

function said(each) {
  const isEmpty = !each.text;
  return [
    isEmpty && (each.tool_calls ?? []).length ? null : h("p", { class: "role" }, visible(ROLES[each.role] ?? String(each.role ?? "message")), stepLink(each)),
    isEmpty ? null : prose(each.nodes, each.text),
    (each.media ?? []).length ? h("p", { class: "quiet" }, count(each.media.length, "attachment")) : null,
  ];
}

function folded(each) {
  const words = count(String(each.text).split(/\s+/).length, "word");
  return h("details", {}, h("summary", { class: "role" }, ROLES.system, " ", h("span", { class: "quiet" }, words)), prose(each.nodes, each.text));
}

function note(each) {
  return [h("p", { class: "line" }, mark(each), h("span", { class: "tool" }, visible(String(each.name))), h("code", { class: "subject" }, visible(String(each.title))), facts(each)), each.text || each.output.length ? shortened(each) : null];
}

function call(each) {
  const line = argumentLine(each.arguments);
  return [
    h("p", { class: "line", title: line }, mark(each), h("span", { class: "tool" }, visible(String(each.name))), h("code", { class: "subject" }, line), facts(each)),
    each.text || each.output.length ? shortened(each) : null,
  ];
}

function isBad(each) {
  return each.success === false || each.command_failed;
}

function mark(each) {
  const bad = isBad(each);
  return h("span", { class: `sign ${bad ? "bad" : "good"}`, role: "img", "aria-label": bad ? "failed" : "succeeded" }, bad ? "✗" : "✓");
}

function facts(each) {
  const names = Object.entries(each.files ?? {});
  const known = argumentLine(each.arguments); // what it names already is not repeated
  const shown = names.length > 2 ? count(names.length, "file") : names.map(([path, letter]) => [h("b", { class: `letter ${letter}` }, letter), " ", known.includes(path) ? "" : `${visiblePath(path)} `]);
  const ending = each.success === false ? "rolled back" : each.command_failed ? visible(each.command) : "";
  return h("span", { class: "facts" }, names.length ? [shown, " "] : null, ending ? h("span", { class: "mark bad" }, ending, " ") : null, duration(each.ms), stepLink(each));
}

function stepLink(each) {
  return h("a", { class: "stepnumber", href: link({ step: each.n, branch: null, view: undefined, file: null, base: null }), title: "Files, state and changes at this step" }, `#${each.n}`);
}

// The arguments in a line: first what the call is about, then the rest by name.
export function argumentLine(given) {
  if (given === null || given === undefined) return "";
  if (typeof given !== "object") return visible(short(given));
  const parts = Object.entries(given)
    .filter(([, value]) => value !== null && value !== "" && value !== false)
    .map(([name, value]) => (PLAIN.has(name) ? short(value) : `${name}: ${short(value)}`));
  return visiblePath(parts.join("  "));
}

const PLAIN = new Set(["command", "cmd", "path", "file_path", "paths", "pattern", "query", "code", "script"]);

function short(value) {
  const text = typeof value === "string" ? value : Array.isArray(value) && value.every((each) => typeof each === "string") ? value.join(" ") : (JSON.stringify(value) ?? "");
  const [first, ...rest] = text.trim().split("\n");
  return first.length > MAX_ARGUMENT ? `${first.slice(0, MAX_ARGUMENT)}…` : rest.length ? `${first} …` : first;
}

// Output with colours is what was printed; any other is what the model got.
function shortened(each) {
  const text = each.output.length ? each.output.map(([, part]) => part).join("") : String(each.text).trimEnd();
  const lines = text.trimEnd().split("\n");
  const body = output(each.output.length ? each.output : text, isBad(each) ? "bad-output" : "");
  if (lines.length <= FOLDED) return body;
  body.classList.add("clipped");
  const button = h("button", { type: "button", class: "small unfold", "aria-expanded": "false", onclick: unfold }, `Show all ${lines.length.toLocaleString("en")} lines`);
  function unfold() {
    const isOpen = !body.classList.toggle("clipped");
    button.setAttribute("aria-expanded", String(isOpen));
    button.textContent = isOpen ? "Show less" : `Show all ${lines.length.toLocaleString("en")} lines`;
  }
  return [body, button];
}
