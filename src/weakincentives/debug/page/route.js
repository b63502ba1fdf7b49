// The address: what is shown is in the part after `#`, so every view has a link.

const NAMES = ["session", "branch", "step", "view", "file", "line", "base", "a", "b"];
export const VIEWS = ["step", "diff", "files", "state", "talk", "use"];

// File names may have bytes that are not UTF-8. They arrive as lone surrogates, which the
// browser's own encoding rejects.
const LONE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/;

function encodeHash(text) {
  return Array.from(text, (each) =>
    LONE.test(each) ? `%u${each.charCodeAt(0).toString(16)}` : encodeURIComponent(each).replaceAll("%2F", "/")
  ).join("");
}

function decodeHash(text) {
  return text
    .split(/(%u[0-9a-f]{4})/)
    .map((each) => (/^%u[0-9a-f]{4}$/.test(each) ? String.fromCharCode(parseInt(each.slice(2), 16)) : decodeURIComponent(each)))
    .join("");
}

export function encodeQuery(text) {
  return Array.from(text, (each) => {
    const code = each.charCodeAt(0);
    if (!LONE.test(each)) return encodeURIComponent(each);
    return code >= 0xdc80 && code <= 0xdcff ? `%${(code - 0xdc00).toString(16)}` : "%ef%bf%bd";
  }).join("");
}

export function parseRoute(hash) {
  const route = {};
  for (const part of hash.replace(/^#/, "").split("&")) {
    const [name, ...value] = part.split("=");
    if (!NAMES.includes(name)) continue;
    try {
      route[name] = decodeHash(value.join("="));
    } catch {
      // not an address of ours
    }
  }
  for (const name of ["step", "line", "base"]) {
    const number = Number(route[name]);
    if (Number.isInteger(number) && number > 0) route[name] = number;
    else delete route[name];
  }
  if (!VIEWS.includes(route.view)) delete route.view;
  return route;
}

export function formatRoute(route) {
  const parts = NAMES.filter((name) => route[name] !== undefined && route[name] !== null);
  return `#${parts.map((name) => `${name}=${encodeHash(String(route[name]))}`).join("&")}`;
}

export function currentRoute() {
  return parseRoute(location.hash);
}

export function link(changes) {
  const route = { ...currentRoute(), ...changes };
  if (!("line" in changes)) delete route.line;
  if ("step" in changes && changes.step) delete route.branch;
  if (!("a" in changes)) {
    delete route.a;
    delete route.b;
  }
  return formatRoute(route);
}

export function go(changes, { silently = false } = {}) {
  const target = link(changes);
  if (target === location.hash) return;
  if (silently) history.replaceState(null, "", target);
  else location.hash = target;
}
