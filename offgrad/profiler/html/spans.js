// Spans of modules, operations and I/O threads, on the same time as the memory above.

const LANE = 19;
const MAX_LANES = 8; // of nested spans of a thread

// Put spans into lanes, so that none overlaps another in its lane.
function nested(spans) {
  const lanes = [];
  for (const span of spans) {
    let lane = lanes.findIndex((each) => each[each.length - 1].end <= span.start + 1e-9);
    if (lane < 0) lane = lanes.length < MAX_LANES ? lanes.push([]) - 1 : MAX_LANES - 1;
    lanes[lane].push(span);
  }
  return lanes;
}

// Lanes of spans of one thread and kind, in the order of their nesting: [label, spans].
function lanesOf(profile) {
  const groups = new Map();
  const spans = profile.spans || [];
  const phases = spans.some((each) => each.kind === "phase") ? [] :
    (profile.phases || []).map((each) => ({ ...each, kind: "phase", thread: 0 }));
  for (const span of spans.length ? [...phases, ...spans] : []) {
    const key = `${span.kind} ${span.thread}`;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(span);
  }
  const order = ["phase", "module", "op", "io"];
  const keys = [...groups.keys()].sort((a, b) => order.indexOf(a.split(" ")[0]) -
    order.indexOf(b.split(" ")[0]) || (a < b ? -1 : 1));
  const lanes = [];
  for (const key of keys) {
    const sorted = groups.get(key).sort((a, b) => a.start - b.start || b.end - a.end);
    const [kind] = key.split(" ");
    const names = { phase: "phase", module: "modules", op: "ops", io: "I/O" };
    nested(sorted).forEach((lane, index) => lanes.push([index ? "" : names[kind] || kind, lane]));
  }
  return lanes;
}

function spanColour(span, depth) {
  if (span.kind === "io") return /^(get|read|prefetch)/i.test(span.name) ? "read" : "write";
  if (span.kind === "module") return depth % 2 ? "module-a" : "module-b";
  return "op";
}

function describe(span) {
  const amount = !span.nbytes ? "" :
    span.kind === "io" ? `, ${bytes(span.nbytes)}` : `, peak ${bytes(span.nbytes)}`;
  const rate = span.kind === "io" && span.nbytes && span.end > span.start ?
    `, ${bytes(span.nbytes / (span.end - span.start))}/s` : "";
  const thread = span.kind === "io" ? `, ${span.thread}` : "";
  return `${span.name}: ${duration(span.end - span.start)} at ${span.start.toFixed(4)} s` +
    amount + rate + thread;
}

// The name, without as many of its first parts as there is no room for.
function fitting(name, room) {
  const parts = name.split(".");
  while (parts.length > 1 && parts.join(".").length > room) parts.shift();
  const shown = parts.join(".");
  return shown.length <= room ? shown : room > 3 ? `${shown.slice(0, room - 1)}…` : "";
}

// The rectangles of a lane. Spans narrower than a pixel are drawn once for each pixel.
function drawLane(chart, lane, depth, top, view, width, x, chosen) {
  let drawn = -1;
  for (const span of lane) {
    if (span.end < view.range[0] || span.start > view.range[1]) continue;
    const left = Math.max(LEFT, x(span.start));
    const right = Math.min(width, x(span.end));
    if (right - left < 0.7 && left < drawn + 0.7) continue;
    drawn = right;
    const box = svg("rect", { x: left.toFixed(1), y: top, width: Math.max(0.7, right - left - 0.5),
      height: LANE - 3, rx: 2, "data-kind": span.kind, onpointerenter: () => chosen(span),
      onpointerdown: () => chosen(span) }, svg("title", {}, describe(span)));
    chart.append(tinted(box, "fill", colour(spanColour(span, depth))));
    const room = Math.floor((right - left - 6) / 6.2);
    const name = fitting(span.name, room);
    if (name) chart.append(svg("text", { class: "inside", x: left + 4, y: top + 12 }, name));
  }
}

function spansSection(profile, view) {
  const lanes = lanesOf(profile);
  if (!lanes.length) return null;
  const box = html("div", {});
  const below = html("p", { class: "note" }, "Point at a span to read it.");
  const chosen = (span) => below.replaceChildren(describe(span));
  const marks = svg("g", {});
  const mark = () => drawCursor(marks, view, box.clientWidth, 0, lanes.length * LANE + 8);
  const draw = () => {
    const width = box.clientWidth;
    if (!width) return;
    const height = lanes.length * LANE + 8;
    const x = view.position(width);
    const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img",
      "aria-label": "Spans of modules, operations and I/O threads", "data-chart": "spans" });
    lanes.forEach(([label, lane], index) => {
      const top = 4 + index * LANE;
      if (label) chart.append(svg("text", { x: LEFT - 6, y: top + 12, "text-anchor": "end" }, label));
      drawLane(chart, lane, index, top, view, width, x, chosen);
    });
    chart.append(marks);
    box.replaceChildren(chart);
    mark();
  };
  listen(box, view);
  view.cursorListeners.push(mark);
  view.listeners.push(draw);
  onWidth(box, draw);
  const summary = ioSummary(profile);
  const legend = summary && html("p", { class: "note" }, chip("read"), " reads  ", chip("write"),
    " writes");
  return section(summary ? "Compute and I/O" : "Compute", summary, box, legend, below);
}

// How long I/O threads were busy, and how long computing waited for them.
function ioSummary(profile) {
  const spans = (profile.spans || []).filter((each) => each.kind === "io")
    .sort((a, b) => a.start - b.start);
  if (!spans.length) return null;
  let busy = 0;
  let until = -Infinity;
  for (const { start, end } of spans) {
    busy += Math.max(0, end - Math.max(start, until));
    until = Math.max(until, end);
  }
  const stall = [profile.ledger, profile.pages].reduce((sum, each) =>
    sum + (each && each.stall_seconds || 0), 0);
  const waited = `; computing waited ${duration(stall)} for stores`;
  return html("p", {}, `I/O ran during ${duration(busy)} of ${duration(profile.seconds)}${waited}.`);
}
