// The page: figures, policies side by side, and the sections of the chosen profile.

function peakIn(profile, name) {
  const total = (profile.phase_totals || {})[name]; // of all phases; old ones are not kept
  if (total) return total.peak_nbytes;
  return largest((profile.phases || []).filter((each) => each.name === name)
    .map((each) => each.peak_nbytes));
}

// Those that the program marked.
function endedSteps(profile) {
  return (profile.steps || []).filter((each) => each.ended !== false);
}

// The median, which one slow step does not change.
function stepSeconds(profile) {
  const all = endedSteps(profile).map((each) => (each.end - each.start) / (each.count || 1))
    .sort((a, b) => a - b);
  return all.length ? all[all.length >> 1] : 0;
}

// The figures of one profile: [name, value, text].
function figuresOf(profile) {
  const ledger = profile.ledger || {};
  const pages = profile.pages || {};
  const both = (key) => (ledger[key] || 0) + (pages[key] || 0);
  const rss = profile.sampled && profile.sampled.rss_nbytes;
  const peak = profile.peak_nbytes || largest(profile.timeline.nbytes);
  return [["peak", peak, bytes],
    ["peak in forward", peakIn(profile, "forward"), bytes],
    ["peak in backward", peakIn(profile, "backward"), bytes],
    ["peak in optimizer", peakIn(profile, "optimizer"), bytes],
    ["saved for backward", ledger.logical_nbytes || 0, bytes],
    ["written", both("written_nbytes"), bytes], ["read back", both("read_nbytes"), bytes],
    ["recomputed", both("recomputed_nbytes"), bytes],
    ["waited for stores", both("stall_seconds"), duration],
    ["median step", stepSeconds(profile), duration],
    ["largest RSS", rss ? largest(rss) : 0, bytes]];
}

function cards(profile) {
  const used = figuresOf(profile).filter(([, value]) => value);
  return html("div", { class: "cards" }, used.map(([name, value, show]) =>
    html("div", { class: "card" }, html("b", {}, show(value)), html("span", {}, name))));
}

function compareSection(profiles, choose) {
  const all = profiles.map((each) => figuresOf(each.profile));
  const rows = [];
  all[0].forEach(([name, , show], index) => {
    const values = all.map((figures) => figures[index][1]);
    const most = largest(values);
    if (most) rows.push([name, ...values.map((value) => value ? [show(value), value / most] : "–")]);
  });
  const columns = [["", ""], ...profiles.map((each) => [each.name, "figure"])];
  const most = largest(profiles.map((each) => largest(each.profile.timeline.nbytes)));
  const end = largest(profiles.map((each) => each.profile.seconds || 0));
  const charts = profiles.map((each) => {
    const box = html("div", {});
    onWidth(box, (width) => box.replaceChildren(
      layerChart(each.profile, new View(end), width, 180, most)));
    return html("div", { "data-policy": each.name }, html("h3", {}, each.name), box);
  });
  const picks = profiles.map((each, at) => html("button", { type: "button", "aria-pressed": "false",
    onclick: () => choose(at) }, each.name));
  const layers = new Set(profiles.flatMap((each) =>
    layersOf(each.profile.timeline).map(([name]) => name)));
  const legend = [...layers].flatMap((name) => [chip(name), ` ${name}  `]);
  const figures = table(columns, rows, "tree policies");
  tinted(figures, "min-width", `${96 + 84 * profiles.length}px`);
  const element = section("Side by side", html("div", { class: "scroll" }, figures), html("p", { class: "note" }, "All on the same scales.  ", legend),
  html("div", { class: "several" }, charts), html("h2", {}, "One by one"),
  html("div", { class: "bar" }, picks));
  return { element, picks };
}

function about(profile) {
  const machine = profile.machine || {};
  const count = endedSteps(profile).reduce((sum, each) => sum + (each.count || 1), 0);
  const words = Object.entries(machine).map(([name, value]) => typeof value === "string" ?
    ["cpu", "system"].includes(name) ? value : `${name} ${value}` : typeof value !== "number" ? null : name.endsWith("nbytes") ?
      `${bytes(value)} ${name.replace(/_?nbytes/, "").replaceAll("_", " ")}` :
      `${number(value)} ${name.replaceAll("_", " ")}`);
  return [`${duration(profile.seconds || 0)} recorded`,
    count ? `${number(count)} step${count > 1 ? "s" : ""}` : null, ...words]
    .filter((each) => each !== null).join(" · ");
}

function details(profile) {
  const end = Math.max(profile.seconds || 0, profile.timeline.seconds.at(-1) || 0);
  const view = new View(end);
  return [cards(profile), timelineSection(profile, view), spansSection(profile, view),
    peakSection(profile), modulesSection(profile), processSection(profile, view),
    ledgerSection("Ledger of saved tensors", profile.ledger),
    ledgerSection("Ledger of pages", profile.pages)].filter((each) => each !== null);
}

function main() {
  const { profiles } = JSON.parse(document.getElementById("data").textContent);
  for (const { profile } of profiles) {
    profile.spans = profile.spans.map(([name, kind, thread, start, end, nbytes]) =>
      ({ name, kind, thread: profile.threads[thread], start, end, nbytes }));
  }
  const place = html("div", {});
  let compared = null;
  const choose = (at) => {
    document.getElementById("about").textContent = about(profiles[at].profile);
    place.replaceChildren(...details(profiles[at].profile));
    if (compared) {
      compared.picks.forEach((each, index) => each.setAttribute("aria-pressed", index === at));
    }
  };
  if (profiles.length > 1) compared = compareSection(profiles, choose);
  document.getElementById("main").replaceChildren(...(compared ? [compared.element] : []), place);
  choose(0);
  document.body.setAttribute("data-drawn", "true");
}

main();
