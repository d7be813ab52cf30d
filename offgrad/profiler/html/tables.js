// What is alive at the peak, the tree of modules, the ledger, the process, policies side by side.

const SHOWN = window.innerWidth < 620 ? 12 : 40;

// Entries that are alike in some fields as one; where they differ in another, it is left out.
const GROUPS = [["entry by entry", null], ["by op and slot", ["category", "op", "slot"]],
  ["by module", ["category", "module"]], ["by line", ["category", "line"]],
  ["by category", ["category"]]];

function grouped(contents, fields) {
  if (!fields) return contents;
  const groups = new Map();
  for (const entry of contents) {
    const key = JSON.stringify(fields.map((field) => entry[field]));
    const sum = groups.get(key);
    if (!sum) {
      groups.set(key, { ...entry, count: entry.count || 1 });
      continue;
    }
    sum.nbytes += entry.nbytes;
    sum.count += entry.count || 1;
    for (const field of ["op", "slot", "module", "line"]) {
      if (sum[field] !== entry[field]) sum[field] = "";
    }
    if (String(sum.shape) !== String(entry.shape)) sum.shape = null;
  }
  return [...groups.values()].sort((a, b) => b.nbytes - a.nbytes);
}

function contentRow(entry, most) {
  const what = [entry.op, entry.slot].filter((each) => each).join(".");
  const shape = entry.shape ? `${entry.dtype || ""} [${entry.shape.join(", ")}]`.trim() : "";
  return [html("span", {}, chip(entry.category || "temporary"), ` ${entry.category || ""}`), what,
    entry.module || "", html("span", { class: "code" }, shape), number(entry.count || 1),
    [bytes(entry.nbytes), entry.nbytes / most], html("span", { class: "code" }, entry.line || "")];
}

function peakSection(profile) {
  const peak = profile.peak;
  if (!peak || !(peak.contents || []).length) return null;
  const columns = [["category", ""], ["op and slot", ""], ["module", ""], ["shape", ""],
    ["count", "figure"], ["bytes", "figure"], ["line", ""]];
  const box = html("div", { class: "scroll" });
  const choice = html("select", { "aria-label": "Sum up", onchange: () => draw(SHOWN) },
    GROUPS.map(([name]) => html("option", {}, name)));
  const draw = (count) => {
    const entries = grouped(peak.contents, GROUPS[choice.selectedIndex][1]);
    const most = entries[0].nbytes || 1;
    const rows = entries.slice(0, count).map((each) => contentRow(each, most));
    const rest = entries.slice(count);
    const more = rest.length ? html("button", { type: "button", onclick: () => draw(Infinity) },
      `${rest.length} more, ${bytes(rest.reduce((sum, each) => sum + each.nbytes, 0))}`) : null;
    box.replaceChildren(table(columns, rows, "peak"), ...(more ? [more] : []));
  };
  draw(SHOWN);
  const known = peak.contents.reduce((sum, each) => sum + each.nbytes, 0);
  return section("What is alive at the peak", html("p", {},
    `${bytes(peak.nbytes)} at ${peak.seconds.toFixed(4)} s; largest first, ${bytes(known)} listed.`),
  html("div", { class: "bar" }, choice), box);
}

const FIGURES = [["saved", "saved_nbytes", bytes], ["forward", "forward_seconds", duration],
  ["backward", "backward_seconds", duration], ["forward peak", "forward_peak_nbytes", bytes],
  ["backward peak", "backward_peak_nbytes", bytes], ["calls", "calls", number],
  ["packs", "packs", number], ["unpacks", "unpacks", number], ["hits", "hits", number],
  ["written", "written_nbytes", bytes], ["read", "read_nbytes", bytes],
  ["waited", "stall_seconds", duration]];

// These count a module alone, so that the tree adds those of its parts; others include them.
const OWN = ["saved_nbytes", "packs", "unpacks", "hits", "written_nbytes", "read_nbytes",
  "stall_seconds"];

// The modules as a tree by their names, with containers that were never called.
function treeOf(modules) {
  const nodes = new Map();
  const node = (name) => {
    if (!nodes.has(name)) {
      const parent = name === "" ? null : node(name.slice(0, Math.max(0, name.lastIndexOf("."))));
      const made = { name, children: [], row: null };
      nodes.set(name, made);
      if (parent) parent.children.push(made);
    }
    return nodes.get(name);
  };
  for (const row of modules) node(row.name).row = row;
  const sum = (each) => {
    each.children.forEach(sum);
    const own = each.row;
    each.row = { name: each.name, type: "", ...own };
    for (const [, key] of FIGURES) {
      const parts = each.children.map((child) => child.row[key] || 0);
      const total = parts.reduce((a, b) => a + b, 0);
      if (OWN.includes(key)) each.row[key] = (each.row[key] || 0) + total;
      else if (!own && key !== "calls") each.row[key] = key.includes("peak") ? largest(parts) : total;
    }
  };
  const root = node("");
  sum(root);
  return root;
}

function modulesSection(profile) {
  if (!(profile.modules || []).length) return null;
  const root = treeOf(profile.modules);
  const used = FIGURES.filter(([, key]) => profile.modules.some((each) => each[key]));
  const flat = (node) => [node, ...node.children.flatMap(flat)];
  const most = Object.fromEntries(used.map(([, key]) =>
    [key, largest(flat(root).map((node) => node.row[key] || 0)) || 1]));
  const body = html("tbody", {});
  const open = new Set(["", ...root.children.slice(0, 12).map((each) => each.name)]);
  const addRows = (node, depth) => {
    const toggle = () => {
      if (!open.delete(node.name)) open.add(node.name);
      draw(node.name);
    };
    const isOpen = open.has(node.name);
    const own = node.name.slice(node.name.lastIndexOf(".") + 1) || "the model";
    const handle = node.children.length ? html("button", { type: "button", onclick: toggle,
      "aria-expanded": String(isOpen), "aria-label": `Parts of ${node.name || "the model"}`,
      "data-module": node.name }, isOpen ? "▾" : "▸") : html("span", { class: "leaf" });
    const name = tinted(html("td", {}, handle, own, " ",
      html("span", { class: "note" }, node.row.type || "")), "padding-left", `${depth * 14}px`);
    body.append(html("tr", {}, name, used.map(([, key, show]) => {
      const value = node.row[key] || 0;
      const bar = tinted(html("i"), "width", `${(value / most[key]) * 100}%`);
      return html("td", { class: "figure" }, value ? show(value) : "–", value ? bar : null);
    })));
    if (isOpen) node.children.forEach((child) => addRows(child, depth + 1));
  };
  const draw = (focused) => {
    body.replaceChildren();
    addRows(root, 0);
    const again = [...body.querySelectorAll("button")].find((each) =>
      each.getAttribute("data-module") === focused);
    if (again) again.focus();
  };
  const press = (text, names) => html("button", { type: "button", onclick: () => {
    open.clear();
    names().forEach((each) => open.add(each));
    draw();
  } }, text);
  draw();
  const head = [["module", ""], ...used.map(([name]) => [name, "figure"])];
  return section("Modules", html("div", { class: "bar" }, press("Open all", () => flat(root).map((node) => node.name)),
    press("Close all", () => [""])), html("div", { class: "scroll", tabindex: "0" },
    html("table", { class: "tree" }, html("thead", {}, html("tr", {}, head.map(([name, kind]) =>
      html("th", { class: kind, scope: "col" }, name)))), body)));
}

function ledgerSection(title, ledger) {
  if (!ledger || !(ledger.rows || []).length) return null;
  const figures = [["saves", "saves", number], ["saved", "logical_nbytes", bytes],
    ["kept", "kept_nbytes", bytes], ["stored", "stored_nbytes", bytes],
    ["read", "read_nbytes", bytes], ["recomputed", "recomputed_nbytes", bytes],
    ["hits", "hits", number], ["waited", "stall_seconds", duration]];
  const used = figures.filter(([, key]) => ledger.rows.some((each) => each[key]));
  const rows = ledger.rows.slice(0, SHOWN).map((row) => [`${row.op}.${row.slot}`,
    row.module || "", row.store || "", ...used.map(([, key, show]) => row[key] ?
      show(row[key]) : "–")]);
  const columns = [["op and slot", ""], ["module", ""], ["store", ""],
    ...used.map(([name]) => [name, "figure"])];
  const rest = ledger.rows.length - rows.length;
  return section(title, html("p", { class: "note" }, rest > 0 ?
    `The ${rows.length} largest of ${ledger.rows.length} rows.` : null),
  html("div", { class: "scroll" }, table(columns, rows, "stacked")));
}

// The process as the system sees it, beside the exact count.
function processSection(profile, view) {
  const sampled = profile.sampled || {};
  if (!(sampled.seconds || []).length) return null;
  const rss = sampled.rss_nbytes || [];
  const box = html("div", {});
  const exact = [profile.timeline.seconds, profile.timeline.nbytes];
  const lines = [...(largest(rss) ? [[sampled.seconds, rss, "in-flight"]] : []),
    [...exact, "parameter"]];
  const most = 1.06 * largest(lines.map(([, values]) => largest(values)));
  const draw = () => {
    const width = box.clientWidth;
    if (!width) return;
    const { group, x, y } = axes(170, width, view, most, 3);
    const chart = svg("svg", { viewBox: `0 0 ${width} 170`, height: 170, role: "img",
      "aria-label": "Memory of the process over time", "data-chart": "process" }, group);
    for (const [seconds, values, name] of lines) {
      const first = indexAt(seconds, view.range[0]);
      const last = Math.min(seconds.length - 1, indexAt(seconds, view.range[1]) + 1);
      let path = "";
      for (let i = first; i <= last; i++) {
        const at = Math.max(LEFT, Math.min(width, x(seconds[i]))).toFixed(1);
        path += `${i === first ? "M" : "L"}${at} ${y(values[i])}`;
      }
      chart.append(tinted(svg("path", { class: "curve", d: path }), "stroke", colour(name)));
    }
    box.replaceChildren(chart);
  };
  view.listeners.push(draw);
  onWidth(box, draw);
  const growth = (values) => values && values.length ? values[values.length - 1] - values[0] : null;
  const moved = [["read from drives", growth(sampled.read_nbytes)],
    ["written to drives", growth(sampled.written_nbytes)],
    ["growth of the system's page cache", growth(sampled.page_cache_nbytes)]].filter(([, value]) => value !== null);
  const item = (name, tint, amount) => html("li", {}, tint ? chip(tint) : null, name,
    html("span", { class: "amount" }, amount));
  return section("The process", box, html("ul", { class: "readout" },
    item("largest RSS", "in-flight", bytes(largest(rss))),
    item("tensors at most", "parameter", bytes(largest(profile.timeline.nbytes))),
    moved.map(([name, value]) => item(name, null, bytes(value)))));
}
