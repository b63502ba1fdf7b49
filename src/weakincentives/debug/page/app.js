// The page: its frame, what is shown for an address, and new steps of a session that still runs.

import { compareView } from "./compare.js";
import { address, isOffline, loadSessions, loadSteps } from "./data.js";
import { h, recall, remember, replace } from "./dom.js";
import { visible } from "./format.js";
import { helpDialog, listenToKeys } from "./keys.js";
import { VIEWS, currentRoute, formatRoute, go, link } from "./route.js";
import { SearchPanel } from "./search.js";
import { stepView } from "./step.js";
import { summaryView } from "./summary.js";
import { StepList } from "./timeline.js";

const POLL = 1500;
const LIVE = 10_000;

const list = new StepList();
const detail = h("main", { id: "detail", tabindex: -1 });
const searchPanel = new SearchPanel(() => detail.focus());
const title = h("div", { class: "task" });
const picker = h("div", { class: "picker" });
const problem = h("p", { class: "problem", role: "status", hidden: true });
const help = helpDialog();
let steps = [];
let sessions = [];
let shownSession;
let rendering = 0;
let page = null; // what is shown
let grewAt = 0;

function frame() {
  const themeButton = h("button", { type: "button", class: "icon", title: "Light or dark (t)", onclick: switchTheme }, "Theme");
  const helpButton = h("button", { type: "button", class: "icon", title: "Keyboard (?)", onclick: () => help.showModal() }, "Keys");
  const back = h("a", { class: "back", href: "#", onclick: showList }, "← Steps");
  replace(
    document.getElementById("app"),
    h("a", { class: "skip", href: "#detail", onclick: (event) => (event.preventDefault(), detail.focus()) }, "Skip to the step"),
    h("header", { class: "top" }, h("h1", {}, "wink debug"), title, picker, h("div", { class: "tools" }, searchPanel.input, themeButton, helpButton)),
    problem,
    h("div", { class: "columns" }, h("div", { class: "side" }, searchPanel.results, list.element), h("div", { class: "center" }, back, detail)),
    help
  );
}

function showList(event) {
  event.preventDefault();
  document.body.classList.remove("reading");
}

function switchTheme() {
  const isDark = document.documentElement.dataset.theme === "dark";
  setTheme(isDark ? "light" : "dark");
  remember("theme", document.documentElement.dataset.theme);
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
}

async function render() {
  const number = ++rendering;
  const route = currentRoute();
  if (route.session !== shownSession) await openSession(route.session);
  if (number !== rendering) return;
  if (route.step !== undefined && route.a === undefined) await readSteps();
  let body;
  try {
    if (route.a !== undefined && route.b !== undefined) body = await compareView(route, steps);
    else if (route.step !== undefined) body = await stepView(route, steps);
    else if (isChoosing(route)) body = sessionList();
    else body = await summaryView(route);
  } catch (error) {
    body = h("p", { class: "empty", role: "alert" }, `This cannot be shown: ${error.message}`);
  }
  if (number !== rendering) return; // something newer is being shown
  document.body.classList.add("reading");
  document.body.classList.toggle("at-home", "grow" in body);
  page = body;
  replace(detail, body);
  list.mark();
  searchPanel.close();
  const opened = route.file === undefined ? null : detail.querySelector("details.change[open]");
  if (opened) opened.scrollIntoView({ block: "start" });
  else if (!route.line) detail.parentElement.scrollTop = 0;
  readSteps();
  document.title = route.step ? `Step ${route.step} · wink debug` : "wink debug";
}

// Several sessions, and none of them is chosen.
function isChoosing(route) {
  return route.session === undefined && sessions.length > 1;
}

// The steps are asked for when the summary is shown: there may be 100,000.
let reading = null;

function readSteps() {
  reading ??= fetchSteps(shownSession).catch(showProblem);
  return reading;
}

async function openSession(name) {
  shownSession = name;
  steps = [];
  sessions = await loadSessions();
  showTitle(sessions.find((each) => each.name === (name ?? sessions[0]?.name)) ?? {});
  reading = null;
}

async function fetchSteps(name) {
  const answer = await loadSteps();
  if (name !== shownSession) return;
  steps = answer.steps;
  list.show(steps);
  showTitle(answer.session);
  document.body.dataset.listed = "yes";
}

function showTitle(session) {
  const live = Date.now() - grewAt < LIVE ? h("span", { class: "live", role: "status" }, "live") : null;
  const home = formatRoute({ session: currentRoute().session });
  replace(title, h("a", { href: home || "#", title: "Summary of the run" }, visible(session.task || session.name || "")), live);
  problem.hidden = !session.problem;
  problem.textContent = session.problem ? visible(session.problem) : "";
  renderPicker(session);
}

function renderPicker({ name: current, branches = {} }) {
  const choose = (event) => (location.hash = formatRoute({ session: event.target.value }));
  const options = sessions.map((each) => h("option", { value: each.name, selected: each.name === current }, visible(each.name)));
  const others = sessions.filter((each) => each.name !== current);
  const names = Object.entries(branches).sort((a, b) => a[1] - b[1]).map(([branch]) => `${current}@${branch}`);
  const pair = names.length > 1 ? names.slice(-2) : others.length ? [current, others[0].name] : null;
  replace(
    picker,
    sessions.length > 1 ? h("select", { "aria-label": "Session", onchange: choose }, options) : null,
    pair && !isOffline ? h("a", { class: "button", href: link({ a: pair[0], b: pair[1] }) }, "Compare") : null,
    isOffline ? h("span", { class: "tag" }, "a copy") : h("a", { class: "button", href: address("export"), download: "", title: "One HTML file to send; what looks like a key is masked" }, "Export")
  );
}

function sessionList() {
  const rows = sessions.map((each) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, h("a", { href: formatRoute({ session: each.name }) }, visible(each.name))),
      h("td", {}, visible(each.task ?? "")),
      h("td", {}, each.steps),
      h("td", {}, each.model ? visible(each.model) : ""),
      h("td", {}, each.problem ? visible(each.problem) : "")
    )
  );
  return h(
    "article",
    { class: "sessions" },
    h("h2", {}, "Sessions"),
    h("table", { class: "fields" }, h("thead", {}, h("tr", {}, ["Name", "Task", "Steps", "Model", "Problem"].map((each) => h("th", { scope: "col" }, each)))), h("tbody", {}, rows))
  );
}

async function poll() {
  if (document.hidden || shownSession !== currentRoute().session) return;
  await readSteps();
  const before = steps.length;
  const session = shownSession;
  const answer = await loadSteps(before);
  if (session !== shownSession || before !== steps.length) return;
  if (answer.steps.length) {
    grewAt = Date.now();
    const wasLast = currentRoute().step === before;
    steps = [...steps, ...answer.steps];
    list.show(steps);
    if (wasLast) go({ step: steps.length, file: null, base: null }, { silently: true });
    if (wasLast) render();
    else await page?.grow?.();
  }
  showTitle(answer.session);
}

function showProblem(error) {
  problem.hidden = false;
  problem.textContent = `The server does not answer: ${error.message}`;
}

async function keepPolling() {
  try {
    await poll();
  } catch (error) {
    showProblem(error);
  }
  setTimeout(keepPolling, POLL);
}

function move(distance) {
  const step = currentRoute().step ?? 0;
  go({ step: list.neighbour(step, distance), file: null, base: null });
}

function moveToChange(direction) {
  const step = currentRoute().step ?? 0;
  const candidates = steps.filter((each) => each.changes && (direction > 0 ? each.n > step : each.n < step));
  const target = direction > 0 ? candidates[0] : candidates.at(-1);
  if (target) go({ step: target.n, file: null, base: null });
}

function turn(distance) {
  if (currentRoute().step === undefined) return;
  const at = VIEWS.indexOf(currentRoute().view ?? "step");
  go({ view: VIEWS[(at + distance + VIEWS.length) % VIEWS.length], file: undefined, base: null });
}

const actions = {
  j: () => move(1),
  ArrowDown: () => move(1),
  k: () => move(-1),
  ArrowUp: () => move(-1),
  n: () => moveToChange(1),
  p: () => moveToChange(-1),
  g: () => go({ step: 1, file: null, base: null }),
  0: () => go({ step: null, view: undefined, file: null, base: null }),
  G: () => go({ step: steps.length, file: null, base: null }),
  l: () => turn(1),
  ArrowRight: () => turn(1),
  h: () => turn(-1),
  ArrowLeft: () => turn(-1),
  s: () => document.getElementById("split")?.click(),
  t: switchTheme,
  "/": () => searchPanel.input.focus(),
  "?": () => help.showModal(),
  Escape: () => searchPanel.close(),
};
VIEWS.forEach((view, index) => (actions[String(index + 1)] = () => currentRoute().step && go({ view, file: undefined, base: null })));

async function start() {
  setTheme(recall("theme", matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  frame();
  await openSession(currentRoute().session);
  listenToKeys(actions);
  addEventListener("hashchange", render);
  await render();
  document.body.dataset.ready = "yes";
  if (!isOffline) setTimeout(keepPolling, POLL);
}

start().catch((error) => replace(document.getElementById("app"), h("p", { class: "empty", role: "alert" }, `The page cannot be shown: ${error.message}`)));
