// Where the data comes from: the server, or this file itself if it is one that was sent.

import { currentRoute, encodeQuery } from "./route.js";

const PAGE = 200; // messages

const stored = document.getElementById("data");
export const isOffline = stored !== null;
let archive = null;

async function unpack() {
  if (archive === null) {
    const bytes = Uint8Array.from(atob(stored.textContent.trim()), (each) => each.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    archive = await new Response(stream).json();
  }
  return archive;
}

export function address(path, parameters = {}) {
  const session = currentRoute().session;
  const given = session === undefined || "a" in parameters ? parameters : { session, ...parameters };
  const query = Object.entries(given)
    .filter(([, value]) => value !== undefined && value !== null)
    .map(([name, value]) => `${name}=${encodeQuery(String(value))}`)
    .join("&");
  return query ? `/api/${path}?${query}` : `/api/${path}`;
}

async function ask(path, parameters) {
  const response = await fetch(address(path, parameters), { cache: "no-store" });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error ?? response.statusText);
  return answer;
}

export async function loadSessions() {
  return isOffline ? [(await unpack()).session] : ask("sessions");
}

// What a row leaves out.
const DEFAULTS = { parent: null, branch: null, ok: true, rolled_back: false, command: null, command_failed: false, ms: null, undoes: null, client: null, tokens: null, cost: null, tool: null, paths: [], changes: 0 };

export async function loadSteps(since = 0) {
  const { session, steps } = isOffline ? await unpack() : await ask("steps", { since });
  return { session, steps: (isOffline ? steps.slice(since) : steps).map((each) => ({ ...DEFAULTS, ...each })) };
}

export async function loadRun(branch) {
  if (!isOffline) return ask("run", { branch });
  const { runs } = await unpack();
  return runs[branch] ?? Object.values(runs).reduce((one, other) => (other.end > one.end ? other : one));
}

export async function loadStep(number) {
  if (!isOffline) return { ...DEFAULTS, ...(await ask(`steps/${number}`)) };
  const { details, commands } = await unpack();
  return { ...DEFAULTS, ...details[number], commands: commands.map(({ does, command }) => ({ does, command: command.replace("\u0000", number) })) };
}

export async function loadDiff(number, base) {
  if (!isOffline) return ask(`steps/${number}/diff`, { base });
  const { diffs, runs } = await unpack();
  const found = base === 1 && number !== 1 ? Object.values(runs).find((each) => each.end === number)?.diff : diffs[number];
  if (!found || (base !== undefined && base !== found.base)) throw new Error("This file has the changes of single steps only. Use wink debug to compare any two.");
  return found;
}

export async function loadTree(number) {
  if (!isOffline) return ask(`steps/${number}/tree`);
  const entries = await entriesAt(number);
  return { entries: [...entries.values()].sort((a, b) => (a[0] < b[0] ? -1 : 1)), truncated: false };
}

export async function loadFile(number, path, first = 0) {
  if (!isOffline) return ask(`steps/${number}/file`, { path, first });
  const found = (await entriesAt(number)).get(path);
  if (found === undefined) throw new Error("There was no such file at this step.");
  const content = (await unpack()).contents[found[3]];
  return content ?? { path, kind: "omitted", size: found[2], permissions: "" };
}

// A page of the conversation; without `first`, its end.
export async function loadMessages(number, first) {
  if (!isOffline) return ask(`steps/${number}/messages`, { first });
  const { details } = await unpack();
  const said = [];
  const beside = [];
  for (const each of await chain(number)) {
    const step = details[each];
    if (step.messages_kept !== undefined) {
      said.length = Math.min(said.length, step.messages_kept);
      for (const message of step.messages) said.push(message);
    }
    if (step.beside) beside.push(step.beside);
  }
  // without a conversation, the calls of MCP clients stand for it
  const notes = said.length ? beside.filter((each) => each.role === "note") : beside;
  const found = notes.length ? [...said, ...notes].sort((a, b) => a.n - b.n) : said;
  const start = Math.min(first ?? Math.max(0, found.length - PAGE), found.length);
  return { first: start, total: found.length, messages: found.slice(start, start + PAGE) };
}

export async function loadSlices(number) {
  return isOffline ? [] : ask(`steps/${number}/slices`);
}

export async function search(text, step) {
  if (!isOffline) return ask("search", { q: text, step });
  const wanted = text.toLowerCase();
  const { details } = await unpack();
  const steps = Object.values(details)
    .filter((each) => JSON.stringify([each.title, each.details]).toLowerCase().includes(wanted))
    .map((each) => ({ n: each.n, place: "step", text: each.title }));
  const entries = await entriesAt(step);
  const names = [...entries.keys()].filter((each) => each.toLowerCase().includes(wanted));
  return { steps: steps.slice(0, 100), names: names.slice(0, 100), lines: await searchLines(entries, wanted), truncated: false };
}

async function searchLines(entries, wanted) {
  const { contents } = await unpack();
  const found = [];
  for (const [path, entry] of entries) {
    for (const [index, tokens] of (contents[entry[3]]?.lines ?? []).entries()) {
      const text = tokens.map((each) => each[1]).join("");
      if (text.toLowerCase().includes(wanted)) found.push({ path, line: index + 1, text: text.trim().slice(0, 160) });
      if (found.length >= 100) return found;
    }
  }
  return found;
}

export async function loadComparison(a, b) {
  const [first, second] = [a, b].map(splitEnd);
  return ask("compare", { a: first.name, a_step: first.step, a_branch: first.branch, b: second.name, b_step: second.step, b_branch: second.branch });
}

// A run in an address is NAME, NAME@BRANCH or NAME@STEP.
export function splitEnd(text) {
  const found = /^(.*)@(?:(\d+)|([A-Za-z_][\w.-]*))$/s.exec(text);
  return found ? { name: found[1], step: found[2], branch: found[3] } : { name: text };
}

export function rawAddress(number, path) {
  return isOffline ? null : address(`steps/${number}/raw`, { path });
}

async function chain(number) {
  const { details } = await unpack();
  const found = [];
  for (let current = number; current; current = details[current].parent) found.unshift(current);
  return found;
}

// A tree follows from the changes of the steps that lead to it.
async function entriesAt(number) {
  const { changes } = await unpack();
  const entries = new Map();
  for (const each of await chain(number)) {
    const { removed, entries: added } = changes[each];
    for (const path of removed) {
      for (const known of [...entries.keys()]) if (known === path || known.startsWith(`${path}/`)) entries.delete(known);
    }
    for (const entry of added) entries.set(entry[0], entry);
  }
  return entries;
}
