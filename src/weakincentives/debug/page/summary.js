// A run at a glance: task, outcome, tests and cost; what it changed; what was said.

import { changeSections, counts } from "./code.js";
import { loadDiff, loadRun } from "./data.js";
import { h, recall, replace } from "./dom.js";
import { compact, count, day, duration, inline, money, tokenCount, visible } from "./format.js";
import { prose } from "./prose.js";
import { currentRoute, formatRoute, link } from "./route.js";
import { talk } from "./talk.js";

const MANY = 8; // changed files; more are folded
const STATES = { done: ["good", "✓ Done"], failed: ["bad", "✗ Failed"], cancelled: ["bad", "✗ Cancelled"], interrupted: ["bad", "✗ Interrupted"], running: ["running", "Running"] };

export async function summaryView(route) {
  const run = await loadRun(route.branch);
  const head = h("header", { class: "runhead" });
  const answer = h("section", { class: "answer" });
  const changes = h("section", { class: "changes" });
  const conversation = h("section", { class: "said" });
  fillHead(head, run, { changes, conversation });
  fillAnswer(answer, run);
  const element = h("article", { class: "summary-page" }, head, answer, changes, conversation);
  const messages = await talk(run.end, { first: 0 });
  replace(conversation, h("h3", { class: "group" }, "Conversation"), messages);
  // a run can have changed a thousand files: nothing else waits for their diff
  const filled = later(changes, "the changes", loadDiff(run.end, 1), (diff) => fillChanges(changes, run, diff));
  element.grow = async () => {
    const now = await loadRun(route.branch);
    fillHead(head, now, { changes, conversation });
    fillAnswer(answer, now);
    await filled; // which would replace later changes
    fillChanges(changes, now, await loadDiff(now.end, 1));
    await messages.grow?.(now.end);
  };
  return element;
}

function later(place, what, loading, fill) {
  replace(place, h("p", { class: "quiet" }, `Loading ${what} …`));
  return loading.then(fill).catch((error) => replace(place, h("p", { class: "bad" }, `${what} cannot be shown: ${error.message}`)));
}

function fillHead(head, run, targets) {
  const { outcome } = run;
  const [name, label] = STATES[outcome.status] ?? ["", "Recorded"];
  replace(
    head,
    h("h2", {}, inline(run.task || run.name, (each) => h("code", {}, each))),
    run.request ? h("p", { class: "request" }, h("span", { class: "quiet" }, "Then: "), inline(run.request, (each) => h("code", {}, each))) : null,
    branches(run),
    h(
      "dl",
      { class: "cards" },
      card("Outcome", h("span", { class: `state ${name}` }, label), outcome.error ? visible(outcome.error) : visible(outcome.decision)),
      outcome.test ? testCard(outcome.test) : null,
      card("Calls", count(run.tool_calls, "call"), troubles(run)),
      typeof run.cost === "number" ? card("Cost", money(run.cost), tokenFacts(run)) : tokenCount(run.tokens) ? card("Tokens", compact(tokenCount(run.tokens)), tokenFacts(run)) : null,
      card("Time", duration(new Date(run.ended_at) - new Date(run.started_at)) || "–", day(run.started_at)),
      run.model ? card("Model", visible(run.model), "") : null
    ),
    h("p", { class: "jumps" }, jump("Changes", targets.changes), jump("Conversation", targets.conversation))
  );
}

function card(title, value, note) {
  return h("div", { class: "card" }, h("dt", {}, title), h("dd", {}, h("span", { class: "value" }, value), note ? h("span", { class: "quiet" }, note) : null));
}

function testCard(test) {
  const state = h("a", { href: link({ step: test.n, branch: null }), class: `state ${test.failed ? "bad" : "good"}` }, test.failed ? "✗ Failed" : "✓ Passed");
  const failures = test.failures - (test.failed ? 1 : 0);
  const before = failures ? `, after ${count(failures, "failure")}` : "";
  return card("Tests", state, [h("code", {}, visible(test.command)), test.failed ? `: ${visible(test.outcome)}` : "", before]);
}

function troubles(run) {
  return [run.failed_calls ? `${run.failed_calls} rolled back` : "", run.failed_commands ? `${count(run.failed_commands, "command")} failed` : ""].filter(Boolean).join(", ");
}

function tokenFacts({ tokens, cost }) {
  if (!tokenCount(tokens)) return "";
  const parts = [`${compact(tokens.input_tokens)} in`, `${compact(tokens.output_tokens)} out`, tokens.cached_tokens ? `${compact(tokens.cached_tokens)} cached` : ""];
  return `${typeof cost === "number" ? `${compact(tokenCount(tokens))} tokens: ` : ""}${parts.filter(Boolean).join(", ")}`;
}

function jump(title, target) {
  return h("button", { type: "button", class: "small", onclick: () => target.scrollIntoView({ block: "start" }) }, title);
}

function branches(run) {
  const names = Object.keys(run.branches);
  if (names.length < 2) return null;
  const chips = names.map((each) => h("a", { class: "button chip", href: formatRoute({ session: currentRoute().session, branch: each }), "aria-current": each === run.branch ? "page" : undefined }, visible(each)));
  return h("p", { class: "branches" }, h("span", { class: "quiet" }, count(names.length, "branch", "branches")), chips);
}

function fillAnswer(section, run) {
  replace(section, run.answer && run.answer.length ? [h("h3", { class: "group" }, "Answer"), typeof run.answer === "string" ? prose(null, run.answer) : prose(run.answer)] : null);
}

function fillChanges(section, run, diff) {
  const closed = new Set([...section.querySelectorAll("details.change:not([open])")].map((each) => each.dataset.path));
  const parts = diff.changes.length ? changeSections(diff, { step: run.end, split: recall("split", "no") === "yes", selected: diff.changes.length > MANY ? "" : undefined }) : h("p", { class: "empty" }, "The run changed no file.");
  replace(section, h("h3", { class: "group" }, diff.changes.length ? count(diff.changes.length, "changed file") : "Changes", diff.changes.length ? counts(diff) : null), parts);
  for (const each of section.querySelectorAll("details.change")) if (closed.has(each.dataset.path)) each.open = false;
}
