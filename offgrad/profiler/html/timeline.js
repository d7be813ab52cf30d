// Tensor memory over time by category, with phases, steps and a cursor.

const CATEGORIES = ["parameter", "optimizer state", "input", "gradient", "saved for backward",
  "prefetched", "in flight", "temporary"];
const LEFT = 64;

// The part of the recording that is shown, and the instant of the cursor.
class View {
  constructor(end) {
    this.whole = [0, Math.max(end, 1e-9)];
    this.range = this.whole;
    this.listeners = [];
    this.cursor = null; // an instant, or none
    this.dragged = null; // the instant at which dragging began
    this.cursorListeners = [];
  }

  point(cursor, dragged) {
    this.cursor = cursor;
    this.dragged = dragged;
    this.cursorListeners.forEach((listener) => listener());
  }

  show(from, to) {
    const [begin, end] = this.whole;
    const least = (end - begin) / 1e5;
    from = Math.max(begin, Math.min(from, end - least));
    this.range = [from, Math.min(end, Math.max(to, from + least))];
    this.listeners.forEach((listener) => listener());
  }

  scale(factor) {
    const [from, to] = this.range;
    const half = ((to - from) / 2) * factor;
    this.show((from + to) / 2 - half, (from + to) / 2 + half);
  }

  shift(share) {
    const [from, to] = this.range;
    const by = Math.max(this.whole[0] - from, Math.min(share * (to - from), this.whole[1] - to));
    this.show(from + by, to + by);
  }

  position(width) {
    const [from, to] = this.range;
    return (seconds) => LEFT + ((seconds - from) / (to - from)) * (width - LEFT);
  }

  instant(x, width) {
    const [from, to] = this.range;
    const share = Math.max(0, Math.min(1, (x - LEFT) / (width - LEFT)));
    return from + share * (to - from);
  }
}

// The layers from the bottom up: [name, values], with categories that are never there left out.
function layersOf(timeline) {
  if (timeline.layers) return timeline.layers;
  const given = timeline.categories || {};
  const names = [...CATEGORIES, ...Object.keys(given).filter((each) => !CATEGORIES.includes(each))];
  const layers = names.filter((each) => given[each] && largest(given[each]))
    .map((each) => [each, given[each]]);
  timeline.layers = layers.length ? layers : [["tensors", timeline.nbytes]];
  return timeline.layers;
}

// The path of a step function between two sums of layers, from index `first` to `last`.
function layerPath(seconds, low, high, first, last, x, y, right) {
  let path = "";
  for (let i = first; i <= last; i++) {
    const at = x(seconds[i]).toFixed(1);
    path += i === first ? `M${at} ${y(high[i])}` : `H${at}V${y(high[i])}`;
  }
  path += `H${right}V${y(low[last])}`;
  for (let i = last; i >= first; i--) {
    path += `V${y(low[i])}H${x(seconds[i]).toFixed(1)}`;
  }
  return path + "Z";
}

function axes(height, width, view, most, count) {
  const y = (value) => (height - 20 - (value / most) * (height - 40)).toFixed(1);
  const x = view.position(width);
  const group = svg("g", {});
  for (const value of byteTicks(most, count)) {
    group.append(svg("line", { class: "grid", x1: LEFT, x2: width, y1: y(value), y2: y(value) }),
      svg("text", { x: LEFT - 6, y: +y(value) + 4, "text-anchor": "end" },
        bytes(value).replace(".0 ", " ")));
  }
  for (const at of ticks(...view.range, Math.max(2, width / 110), 1)) {
    const anchor = x(at) > width - 24 ? "end" : "middle";
    group.append(svg("text", { x: x(at), y: height - 5, "text-anchor": anchor }, shortTime(at, view)));
  }
  return { group, x, y };
}

function shortTime(at, view) {
  const span = view.range[1] - view.range[0];
  const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(span / 20))));
  return `${at.toFixed(digits)} s`;
}

// Phases, shaded behind the layers: [shades, marks in front].
function phaseMarks(profile, view, width, height, x) {
  const shades = svg("g", {});
  const group = svg("g", {});
  const [from, to] = view.range;
  for (const phase of profile.phases || []) {
    const left = Math.max(LEFT, x(phase.start));
    const right = Math.min(width, x(phase.end));
    if (phase.end < from || phase.start > to || right - left < 1) continue;
    const kind = ["backward", "optimizer"].includes(phase.name) ? phase.name : "plain";
    shades.append(svg("rect", { class: kind, x: left, y: 16, width: right - left,
      height: height - 36, "data-phase": phase.name }));
    if (right - left > phase.name.length * 6.2 + 4) {
      group.append(svg("text", { x: (left + right) / 2, y: 11, "text-anchor": "middle" },
        phase.name));
    }
  }
  const steps = (profile.steps || []).filter((each) => each.start >= from && each.start <= to);
  if (steps.length < width / 8) {
    for (const step of steps) {
      group.append(svg("line", { class: "step", x1: x(step.start), x2: x(step.start), y1: 16,
        y2: height - 20, "data-step": step.index }));
    }
  }
  return [shades, group];
}

// What is written into a layer: its name, where it is thick and wide enough.
function layerLabel(name, seconds, low, high, first, last, x, y, width) {
  let best = null;
  for (let i = first; i <= last; i++) {
    const left = Math.max(LEFT, x(seconds[i]));
    const right = i < last ? Math.min(width, x(seconds[i + 1])) : width;
    const top = +y(high[i]);
    const bottom = +y(low[i]);
    if (bottom - top < 15) continue;
    if (best && best.right >= left - 0.5 && Math.min(best.bottom, bottom) -
        Math.max(best.top, top) >= 14) {
      best = { left: best.left, right, top: Math.max(best.top, top),
        bottom: Math.min(best.bottom, bottom), done: best.done };
    } else if (!best || best.right - best.left < name.length * 6.4 + 8) {
      best = { left, right, top, bottom };
    } else break;
  }
  if (!best || best.right - best.left < name.length * 6.4 + 8) return null;
  return svg("text", { class: "on-layer", x: (best.left + best.right) / 2,
    y: (best.top + best.bottom) / 2 + 4, "text-anchor": "middle" }, name);
}

// The chart of layers; returns the element of `height`, drawn for `width`.
function layerChart(profile, view, width, height, most) {
  const timeline = profile.timeline;
  const seconds = timeline.seconds;
  const layers = layersOf(timeline);
  const first = indexAt(seconds, view.range[0]);
  const last = indexAt(seconds, view.range[1]);
  const top = (most || largest(timeline.nbytes) || 64) * 1.06;
  const { group, x, y } = axes(height, width, view, top, height / 50);
  const label = `Tensor memory by category over ${duration(profile.seconds || 0)}; the peak is ` +
    `${bytes(largest(timeline.nbytes))}.`;
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img",
    "aria-label": label, "data-chart": "timeline" }, group);
  const clamp = (at) => Math.max(LEFT, Math.min(width, x(at)));
  const right = clamp(Math.max(profile.seconds || 0, seconds[seconds.length - 1]));
  let low = seconds.map(() => 0);
  const labels = [];
  const [shades, marks] = phaseMarks(profile, view, width, height, x);
  chart.append(shades);
  for (const [name, values] of layers) {
    const high = low.map((value, index) => value + values[index]);
    const path = layerPath(seconds, low, high, first, last, clamp, y, right);
    const shape = svg("path", { class: "layer", d: path, "data-category": name });
    chart.append(tinted(shape, "fill", colour(name)));
    labels.push(layerLabel(name, seconds, low, high, first, last, clamp, y, right));
    low = high;
  }
  chart.append(marks, ...labels.filter((each) => each !== null));
  const peak = profile.peak ? profile.peak.seconds : -1;
  if (peak >= view.range[0] && peak <= view.range[1]) {
    chart.append(svg("line", { class: "mark", x1: x(peak), x2: x(peak), y1: 16, y2: height - 20 }));
  }
  return chart;
}

// Older steps may be one entry.
function stepName({ index, count }) {
  return count > 1 ? `steps ${index} to ${index + count - 1}` : `step ${index}`;
}

// The legend, which is also the readout of the instant under the cursor.
function readout(profile, at) {
  const timeline = profile.timeline;
  const isPeak = at === null;
  const instant = isPeak && profile.peak ? profile.peak.seconds : at || 0;
  const index = isPeak ? timeline.nbytes.indexOf(largest(timeline.nbytes)) :
    indexAt(timeline.seconds, instant);
  const phase = (profile.phases || []).find((each) => each.start <= instant && instant <= each.end);
  const step = (profile.steps || []).find((each) => each.start <= instant && instant <= each.end);
  const where = [isPeak ? "At the peak" : "At the cursor", `${instant.toFixed(4)} s`,
    phase ? phase.name : null, step ? stepName(step) : null];
  const items = [...layersOf(timeline)].reverse().map(([name, values]) => html("li", {}, chip(name),
    name, html("span", { class: "amount" }, bytes(values[index]))));
  return html("div", { "aria-live": "polite" },
    html("p", {}, html("b", {}, bytes(timeline.nbytes[index])), " · ",
      where.filter((each) => each !== null).join(" · ")),
    html("ul", { class: "readout" }, items));
}

// The cursor, and what is being dragged over, in a chart from `top` to `bottom`.
function drawCursor(marks, view, width, top, bottom) {
  const { cursor, dragged } = view;
  const x = view.position(width);
  marks.replaceChildren();
  if (cursor === null || cursor < view.range[0] || cursor > view.range[1]) return;
  marks.append(svg("line", { class: "cursor", x1: x(cursor), x2: x(cursor), y1: top, y2: bottom }));
  if (dragged !== null) {
    const [a, b] = [dragged, cursor].map(x).sort((p, q) => p - q);
    marks.append(svg("rect", { class: "zoom", x: a, y: top, width: b - a, height: bottom - top }));
  }
}

// Let a finger or pointer read instants by moving, and zoom by dragging.
function listen(element, view) {
  let began = null;
  const place = (event) => event.clientX - element.getBoundingClientRect().left;
  element.addEventListener("pointerdown", (event) => { began = place(event); });
  element.addEventListener("pointermove", (event) => {
    view.point(view.instant(place(event), element.clientWidth), began === null ? null :
      view.instant(began, element.clientWidth));
  });
  element.addEventListener("pointerup", (event) => {
    const ended = place(event);
    const width = element.clientWidth;
    const bounds = [view.instant(began ?? ended, width), view.instant(ended, width)];
    const isDrag = began !== null && Math.abs(ended - began) > 8;
    began = null;
    if (isDrag) view.show(Math.min(...bounds), Math.max(...bounds));
    view.point(isDrag ? null : bounds[1], null);
  });
  element.addEventListener("pointercancel", () => { began = null; view.point(null, null); });
  element.addEventListener("pointerleave", (event) => {
    began = null;
    if (event.pointerType !== "touch") view.point(null, null); // a finger leaves after each tap
  });
  element.addEventListener("dblclick", () => view.show(...view.whole));
}

function controls(profile, view) {
  const press = (text, label, action) => html("button", { type: "button", "aria-label": label,
    title: label, onclick: action }, text);
  const steps = profile.steps || [];
  const option = (step) => html("option", { value: `${step.start} ${step.end}` },
    stepName(step));
  const choice = steps.length < 2 ? null : html("select", { "aria-label": "Show a step",
    onchange: (event) => view.show(...event.target.value.split(" ").map(Number)) },
  html("option", { value: view.whole.join(" ") }, "all steps"), steps.slice(0, 500).map(option));
  return html("div", { class: "bar" }, choice, press("+", "Zoom in", () => view.scale(0.5)),
    press("−", "Zoom out", () => view.scale(2)), press("‹", "Earlier", () => view.shift(-0.5)),
    press("›", "Later", () => view.shift(0.5)),
    press("All", "The whole recording", () => view.show(...view.whole)),
    html("span", { class: "note" }, "Drag to zoom; the dashed line is the peak."));
}

function timelineSection(profile, view) {
  const box = html("div", { tabindex: "0", "aria-label": "Memory over time; arrow keys move" });
  const below = html("div", {});
  const marks = svg("g", {}); // all that changes as the cursor moves
  const height = () => box.clientWidth < 560 ? 250 : 330;
  const mark = () => {
    drawCursor(marks, view, box.clientWidth, 16, height() - 20);
    below.replaceChildren(readout(profile, view.cursor));
  };
  const draw = () => {
    const width = box.clientWidth;
    if (!width) return;
    const chart = layerChart(profile, view, width, height());
    chart.append(marks);
    box.replaceChildren(chart);
    mark();
  };
  listen(box, view);
  view.cursorListeners.push(mark);
  box.addEventListener("keydown", (event) => {
    const turn = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!turn) return;
    event.preventDefault();
    const seconds = profile.timeline.seconds;
    const now = view.cursor ?? (profile.peak ? profile.peak.seconds : 0);
    const index = indexAt(seconds, now + 1e-12) + turn;
    view.point(seconds[Math.max(0, Math.min(seconds.length - 1, index))], null);
  });
  view.listeners.push(draw);
  onWidth(box, draw);
  return section("Memory over time", controls(profile, view), box, below);
}
