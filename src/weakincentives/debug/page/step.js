// One step: what happened, what it changed, and what can be done from here.

import { changeSections, counts } from "./code.js";
import { address, isOffline, loadDiff, loadMessages, loadSlices, loadStep } from "./data.js";
import { copyButton, h, recall, remember } from "./dom.js";
import { compact, count, day, duration, inline, money, stepLabel, tokenCount, visible, visiblePath } from "./format.js";
import { filesView } from "./files.js";
import { output, prose } from "./prose.js";
import { link } from "./route.js";
import { talk } from "./talk.js";

const TITLES = { step: "Overview", diff: "Changes", files: "Files", state: "State", talk: "Conversation", use: "Use it" };
const WHAT = { start: "Recording began", resume: "Recording continued", undo: "Undo", prompt: "Prompt", model: "Model", tool: "Tool call", context: "Context compacted", test: "Tests", end: "End", files: "Files changed" };

export async function stepView(route, steps) {
  const step = await loadStep(route.step);
  const view = route.view ?? "step";
  const body = await BODIES[view](step, route, steps);
  return h("article", { class: "step" }, heading(step, steps), tabs(step, view), h("div", { class: `body body-${view}` }, body));
}

function heading(step, steps) {
  const failed = step.rolled_back ? "rolled back: it left no trace in files or state" : "failed";
  const facts = [
    day(step.at),
    duration(step.ms),
    step.client ? `by ${visible(step.client)}` : "",
    tokenCount(step.tokens) ? `${compact(step.tokens.input_tokens)} tokens in, ${compact(step.tokens.output_tokens)} out` : "",
    step.tokens?.cached_tokens ? `${compact(step.tokens.cached_tokens)} cached` : "",
    typeof step.cost === "number" ? money(step.cost) : "",
    step.parent === null ? "" : `after #${step.parent}`,
    step.command && !step.command_failed ? `command: ${visible(step.command)}` : "",
  ];
  const children = steps.filter((each) => each.parent === step.n);
  return h(
    "header",
    { class: "stephead" },
    h("h2", {}, h("span", { class: `kind kind-${step.kind}` }, WHAT[stepLabel(step)]), " ", h("span", { class: "number" }, `#${step.n}`), " ", inline(step.title)),
    h("p", { class: "facts" }, facts.filter(Boolean).join(" · "), step.ok ? null : h("span", { class: "mark bad" }, failed), step.ok && step.command_failed ? h("span", { class: "mark bad" }, `✗ command ${visible(step.command)}`) : null),
    children.length > 1 ? h("p", { class: "facts" }, `${children.length} branches begin here: `, children.map((each) => [h("a", { href: link({ step: each.n }) }, `#${each.n} ${visible(each.branch ?? "")}`), " "])) : null
  );
}

function tabs(step, view) {
  const notes = { diff: step.changes, state: step.slices.length, talk: step.messages.length ? `+${step.messages.length}` : 0 };
  const items = Object.entries(TITLES).map(([name, title]) =>
    h("li", {}, h("a", { href: link({ view: name, file: undefined, base: null }), "aria-current": name === view ? "page" : undefined }, title, notes[name] ? h("span", { class: "badge" }, notes[name]) : null))
  );
  return h("nav", { class: "tabs", "aria-label": "Views of the step" }, h("ul", {}, items));
}

const BODIES = {
  step: overview,
  diff: diffBody,
  files: filesView,
  state: stateBody,
  talk: conversation,
  use: useBody,
};

async function overview(step) {
  const details = step.details;
  const parts = [];
  if (details.params !== undefined) parts.push(section("Parameters", fields(details.params)));
  if (details.error) parts.push(section("Error", output(details.error, "bad")));
  if (step.changes) parts.push(section(count(step.changes, "changed file"), await changedFiles(step)));
  if (step.output.length) parts.push(section("Output", output(step.output)));
  if (details.result_message) parts.push(section("Result for the model", output(details.result_message)));
  if (step.kind === "context") parts.push(section("What the model gets from now on", h("p", {}, leftOut(details))));
  if (details.summary) parts.push(section("Summary", prose(step.summary_nodes, details.summary)));
  if (details.text) parts.push(section(step.kind === "prompt" ? "Prompt" : step.kind === "test" ? "Output" : "Text", prose(step.text_nodes, details.text)));
  if (Array.isArray(details.tool_calls) && details.tool_calls.length) parts.push(section("Calls", h("p", {}, details.tool_calls.map((each) => [h("code", {}, visible(String(each))), " "]))));
  if (Array.isArray(details.tools) && details.tools.length) parts.push(section("Tools", h("p", {}, details.tools.map((each) => [h("code", {}, visible(String(each))), " "]))));
  const rest = Object.entries(details).filter(([name, value]) => !SHOWN.has(name) && value !== null && value !== "" && !(Array.isArray(value) && value.length === 0));
  if (rest.length) parts.push(h("details", { class: "rest" }, h("summary", {}, "All fields of the event"), fields(Object.fromEntries(rest))));
  return parts.length ? parts : h("p", { class: "empty" }, stepLabel(step) === "start" ? "The recording begins with the files as they were." : "There is nothing more to this step.");
}

function leftOut(details) {
  const facts = [
    details.shortened ? `${count(Number(details.shortened), "tool result")} replaced by a line` : "",
    details.summarized ? `${count(Number(details.summarized), "message")} replaced by a summary` : "",
  ].filter(Boolean);
  const window = details.window ? ` The model takes ${compact(Number(details.window))}.` : "";
  const refused = details.reason === "refused" ? " The model had refused the request." : "";
  const tooLong = details.fits === false ? " It is still too long." : "";
  return `${facts.join(", ") || "Tool results cut"}: ${compact(Number(details.tokens_before))} tokens are now ${compact(Number(details.tokens_after))}.${window}${refused}${tooLong} The recorded conversation stays whole.`;
}

const SHOWN = new Set(["summary", "params", "error", "result_message", "text", "tool_calls", "tools", "usage", "duration_ms", "success"]);

function section(title, body) {
  return h("section", {}, h("h3", {}, title), body);
}

function text(value, name = "") {
  return h("pre", { class: `text ${name}`, tabindex: 0 }, visible(String(value)));
}

function fields(value) {
  if (value === null || typeof value !== "object") return text(JSON.stringify(value));
  const missing = Object.keys(value).filter((name) => value[name] === null);
  const given = Object.fromEntries(Object.entries(value).filter(([, each]) => each !== null));
  return [fieldTable(given), missing.length ? h("p", { class: "quiet none-given" }, `Not given: ${missing.map(visiblePath).join(", ")}`) : null];
}

const SHORT = 90;

function brief(value) {
  if (typeof value === "string") return value;
  const line = JSON.stringify(value) ?? "";
  return line.length <= SHORT ? line : JSON.stringify(value, null, 2);
}

function fieldTable(value) {
  const rows = Object.entries(value).map(([name, each]) => h("tr", {}, h("th", { scope: "row" }, visiblePath(name)), h("td", {}, h("pre", { tabindex: 0 }, visible(brief(each))))));
  return rows.length ? h("table", { class: "fields" }, h("tbody", {}, rows)) : h("p", { class: "empty" }, "None.");
}

function changedPaths(step) {
  const items = step.paths.map((path) => h("li", {}, h("span", { class: `letter ${step.files[path]}` }, step.files[path]), " ", h("a", { href: link({ view: "diff", file: path }) }, visiblePath(path))));
  const more = step.changes - step.paths.length;
  return h("ul", { class: "paths" }, items, more > 0 ? h("li", { class: "quiet" }, `and ${more} more`) : null);
}

const FEW = 5;

async function changedFiles(step) {
  if (step.changes > FEW) return changedPaths(step);
  return changeSections(await loadDiff(step.n), { step: step.n, split: recall("split", "no") === "yes" });
}

async function diffBody(step, route, steps) {
  const isSplit = recall("split", "no") === "yes";
  const found = await loadDiff(step.n, route.base);
  const toggle = () => {
    remember("split", isSplit ? "no" : "yes");
    window.dispatchEvent(new Event("hashchange"));
  };
  const total = { insertions: found.insertions, deletions: found.deletions };
  return [
    h(
      "div",
      { class: "bar" },
      h("span", {}, count(found.changes.length, "file"), " ", counts(total)),
      basePicker(step, found, steps),
      h("button", { type: "button", class: "small", id: "split", "aria-pressed": String(isSplit), onclick: toggle }, "Side by side")
    ),
    changeSections(found, { step: step.n, split: isSplit, selected: route.file }),
  ];
}

function basePicker(step, found, steps) {
  if (isOffline) return null;
  const options = steps.map((each) => h("option", { value: each.n, selected: each.n === found.base }, `#${each.n} ${visible(each.title).slice(0, 60)}`));
  const choose = (event) => (location.hash = link({ view: "diff", base: Number(event.target.value) }));
  return h("label", { class: "quiet" }, "compared with ", h("select", { onchange: choose }, options));
}

async function stateBody(step) {
  const all = await loadSlices(step.n);
  const changed = step.slices.map((each) =>
    h(
      "section",
      { class: "slice" },
      h("h3", {}, h("code", {}, shortName(each.type)), " ", h("span", { class: "quiet" }, `${count(each.before, "item")} before, ${each.after} after`)),
      each.removed.map((item) => h("pre", { class: "item minus" }, visible(JSON.stringify(item, null, 2)))),
      each.added.map((item) => h("pre", { class: "item plus" }, visible(JSON.stringify(item, null, 2))))
    )
  );
  const rest = all.map((each) =>
    h(
      "details",
      { class: "slice" },
      h("summary", {}, h("code", {}, shortName(each.type)), " ", h("span", { class: "quiet" }, count(each.count, "item"), each.log ? ", a log" : "")),
      each.count > each.items.length ? h("p", { class: "empty" }, `The last ${each.items.length} items.`) : null,
      each.items.map((item) => h("pre", { class: "item" }, visible(JSON.stringify(item, null, 2))))
    )
  );
  return [
    changed.length ? [h("h3", { class: "group" }, "Changed by this step"), changed] : h("p", { class: "empty" }, "This step changed no slice."),
    rest.length ? [h("h3", { class: "group" }, "All slices after this step"), rest] : null,
  ];
}

function shortName(name) {
  return visible(name.slice(name.lastIndexOf(":") + 1));
}

function conversation(step) {
  return talk(step.n, { from: step.n });
}

function useBody(step) {
  const commands = step.commands.map(({ does, command }) => h("li", {}, h("p", {}, does), h("div", { class: "command" }, h("code", {}, visiblePath(command)), copyButton(command))));
  const downloads = [
    [address(`steps/${step.n}/archive`), "The files of this step as a ZIP archive"],
    [address("export"), "The whole session as one HTML file to send; what looks like a key is masked"],
    [address(`steps/${step.n}/raw`), "The record of this step as JSON"],
  ];
  return [
    section("In a terminal", h("ul", { class: "commands" }, commands)),
    isOffline ? null : section("Download", h("ul", {}, downloads.map(([href, label], index) => h("li", {}, h("a", { href, download: index === 2 ? `step-${step.n}.json` : "" }, label))))),
  ];
}
