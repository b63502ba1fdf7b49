// Elements are built here and nowhere else. Text is always a text node, so the names and contents
// of recorded files cannot become markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function svg(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

export function replace(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
}

export function copyButton(text) {
  const button = h("button", { type: "button", class: "small", onclick: copy }, "Copy");
  async function copy() {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select it and press Ctrl+C";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  }
  return button;
}

export function recall(name, fallback) {
  try {
    return localStorage.getItem(`wink-${name}`) ?? fallback;
  } catch {
    return fallback; // storage may be switched off
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem(`wink-${name}`, value);
  } catch {
    // as above
  }
}
