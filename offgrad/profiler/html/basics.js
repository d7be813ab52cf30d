// Elements, texts, scales. All names come in as text nodes, so none of them can be markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

function html(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function bytes(count) {
  if (Math.abs(count) < 1024) return `${Math.round(count)} B`;
  for (const unit of ["KiB", "MiB", "GiB"]) {
    count /= 1024;
    if (Math.abs(count) < 1024) return `${count.toFixed(1)} ${unit}`;
  }
  return `${(count / 1024).toFixed(1)} TiB`;
}

function duration(seconds) {
  if (seconds === 0) return "0 s";
  if (Math.abs(seconds) >= 1) return `${seconds.toFixed(seconds < 100 ? 2 : 0)} s`;
  if (Math.abs(seconds) >= 1e-3) return `${(seconds * 1e3).toFixed(1)} ms`;
  return `${Math.round(seconds * 1e6)} µs`;
}

function number(count) {
  return count.toLocaleString("en");
}

// The category's colour, as a custom property of the style sheet.
function colour(name) {
  return `var(--${name.replaceAll(" ", "-")}, var(--accent))`;
}

// A colour may not be an attribute: the page's policy forbids styles in attributes.
function tinted(element, property, value) {
  element.style.setProperty(property, value);
  return element;
}

function chip(name) {
  return tinted(html("span", { class: "chip" }), "background", colour(name));
}

// Round positions from 0 to `most`, at most `count` of them, in steps of 1, 2 or 5 units.
function ticks(from, to, count, unit) {
  const rough = Math.max((to - from) / count, 1e-9 * unit) / unit;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = unit * power * [1, 2, 5, 10].find((each) => each * power >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(from / step - 1e-9); at * step <= to * (1 + 1e-9); at++) {
    found.push(at * step);
  }
  return found;
}

function byteTicks(most, count) {
  let unit = 1;
  while (most / unit >= 1024) unit *= 1024;
  return ticks(0, most, count, unit);
}

// The index of the last of the ascending `values` that is not above `value`.
function indexAt(values, value) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low - 1);
}

function largest(values) {
  return values.reduce((most, value) => Math.max(most, value), 0);
}

function section(title, ...children) {
  return html("section", {}, html("h2", {}, title), ...children);
}

// A table of rows of cells. A column is [name, kind]; a figure may be [text, share of the bar].
function table(columns, rows, style) {
  const head = columns.map(([name, kind]) => html("th", { class: kind, scope: "col" }, name));
  const cell = (value, index) => {
    const [name, kind] = columns[index];
    const [text, share] = Array.isArray(value) ? value : [value, null];
    const bar = share === null ? null : tinted(html("i"), "width", `${share * 100}%`);
    return html("td", { class: kind, "data-name": name }, text, bar);
  };
  const body = rows.map((row) => html("tr", {}, row.map(cell)));
  return html("table", { class: style }, html("thead", {}, html("tr", {}, head)),
    html("tbody", {}, body));
}

// Call `draw(width)` once `element` is in the page, and again when its width changes.
function onWidth(element, draw) {
  let known = 0;
  const check = () => {
    if (element.clientWidth && element.clientWidth !== known) {
      known = element.clientWidth;
      draw(known);
    }
  };
  const checkOrStop = () => {
    if (element.isConnected) check();
    else window.removeEventListener("resize", checkOrStop);
  };
  window.addEventListener("resize", checkOrStop);
  requestAnimationFrame(check);
}
