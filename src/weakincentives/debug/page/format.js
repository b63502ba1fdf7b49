// Numbers, times and paths as people write them.

export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "";
  if (ms < 1) return "<1 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const minutes = Math.floor(ms / 60_000);
  return minutes < 60 ? `${minutes} min ${Math.round((ms % 60_000) / 1000)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function size(bytes) {
  if (bytes < 1024) return count(bytes, "byte");
  if (bytes < 1024 ** 2) return `${(bytes / 1024).toFixed(1)} KiB`;
  return `${(bytes / 1024 ** 2).toFixed(1)} MiB`;
}

// The first step after an earlier one continues a recording, or undoes a step of it.
export function stepLabel(step) {
  if (step.kind !== "start" || step.parent === null) return step.kind;
  return step.undoes === null ? "resume" : "undo";
}

export function clock(date) {
  return new Date(date).toLocaleTimeString("en-GB");
}

export function day(date) {
  const found = new Date(date);
  return `${found.toLocaleDateString("en-CA")} ${found.toLocaleTimeString("en-GB")}`;
}

export function tokenCount(usage) {
  return (usage?.input_tokens ?? 0) + (usage?.output_tokens ?? 0);
}

export function compact(number) {
  if (number < 10_000) return number.toLocaleString("en");
  return number < 1_000_000 ? `${(number / 1000).toFixed(number < 100_000 ? 1 : 0)}k` : `${(number / 1_000_000).toFixed(1)}M`;
}

export function money(cost) {
  return `$${cost.toFixed(cost < 1 ? 4 : 2)}`;
}

// Words between backticks are code; other marks of Markdown are left out of a line.
export function inline(text, code) {
  return visible(text.replaceAll("```", "").replaceAll("**", "")).split(/`([^`]+)`/).map((each, index) => (index % 2 && code ? code(each) : each));
}

// The characters that hide or reorder text are shown by their number: a file name must not lie.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

export function visible(text) {
  return text.replace(HIDDEN, (each) => `‹${each.charCodeAt(0).toString(16).padStart(2, "0")}›`);
}

export function visiblePath(text) {
  return visible(text).replaceAll("\n", "‹0a›").replaceAll("\t", "‹09›");
}
