// Numbers as `iswitch top` writes them, and elements.

const grouped = (value, digits) =>
  value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

export const count = (value) => grouped(value, 0);
export const ms = (seconds) => `${grouped(1000 * seconds, seconds >= 0.01 ? 0 : 1)} ms`;
export const share = (value, digits = 0) => `${(100 * value).toFixed(digits)}%`;
export const mbit = (bits) => grouped(bits / 1e6, 1);
export const rate = (value) => grouped(value, value >= 10 ? 0 : 1);

export function bytes(value) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (value < 1024) return `${value.toFixed(unit === "B" || value >= 100 ? 0 : 1)} ${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(1)} GiB`;
}

const SVG = "http://www.w3.org/2000/svg";

function filled(made, attributes, inside) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== "") made.setAttribute(name, value);
  }
  made.append(...inside.filter((one) => one !== null && one !== undefined));
  return made;
}

/** Make an element of HTML; text among `inside` is never read as HTML. */
export const html = (tag, attributes = {}, ...inside) =>
  filled(document.createElement(tag), attributes, inside);

/** Make an element of SVG. */
export const svg = (tag, attributes = {}, ...inside) =>
  filled(document.createElementNS(SVG, tag), attributes, inside);

export const faint = (text) => html("p", { class: "faint" }, text);
