// The parts of the page that are tables and texts. All text is set as text, never as HTML.

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  Object.entries(attributes || {}).forEach(([name, value]) => {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  });
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

const section = (id, title, hint, ...children) => el("section", {id}, el("h2", {}, title), hint ? el("p", {class: "hint"}, hint) : null, ...children);
const badge = (state) => el("span", {class: `badge ${/^[a-z]+$/.test(state) ? state : ""}`}, state);
const number = (value) => (value === null || value === undefined ? "-" : Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : Number(value.toPrecision(4)).toString());

function table(header, rows, numeric = []) {
  const cell = (tag) => (content, k) => el(tag, {class: numeric.includes(k) ? "n" : null}, content);
  const body = rows.map((row) => el("tr", {class: row.own ? "own" : null}, row.cells.map(cell("td"))));
  return el("table", {}, el("thead", {}, el("tr", {}, header.map(cell("th")))), el("tbody", {}, body));
}

function overview(data) {
  const problems = data.runs.flatMap((run) => run.problems.map((text) => el("div", {class: "problem"}, data.runs.length > 1 ? `${run.name}: ${text}` : text)));
  if (data.runs.length === 1) {
    const facts = data.runs[0].facts.map(([label, text]) => el("div", {class: text.length > 24 ? "fact long" : "fact"}, el("b", {}, text), el("span", {}, label)));
    return section("overview", "At a glance", null, ...problems, el("div", {class: "facts"}, facts));
  }
  const fact = (run, label) => (run.facts.find(([name]) => name === label) || ["", "-"])[1];
  const columns = ["environment steps", "last evaluation", "best evaluation", "trained for", "steps/s (median)", "restarts of roles"];
  const rows = data.runs.map((run, k) => {
    const name = data.comparison.groups[groupOf(data, k)];
    const dot = el("span", {class: "swatch"});
    Object.assign(dot.style, {display: "inline-block", width: "10px", height: "10px", borderRadius: "50%", marginRight: "7px", background: styleOf(data, k).color});
    return {cells: [el("span", {}, dot, run.name), name ? name.name : "", badge(run.state), ...columns.map((label) => fact(run, label))]};
  });
  return section("overview", `${data.runs.length} runs`, "A group has the runs that differ in nothing but the seed.", ...problems,
    el("div", {class: "scroll"}, table(["run", "group", "state", ...columns], rows, [3, 4, 5, 6, 7, 8])), comparisonTable(data.comparison));
}

const areSingle = (comparison) => comparison.table.every((row) => row.runs === 1);

function comparisonTable(comparison) {
  if (comparison.problems.length) return el("div", {}, comparison.problems.map((text) => el("div", {class: "problem"}, `Not compared: ${text}`)));
  const rows = comparison.table.map((row) => ({cells: [row.group, String(row.runs), String(row.unfinished), number(row.env_steps), number(row.final_iqm),
    row.final_low === null ? "-" : `[${number(row.final_low)}, ${number(row.final_high)}]`, number(row.best)]}));
  if (areSingle(comparison)) {
    return el("div", {}, el("h3", {}, "Last evaluations"), table(["run", "env steps", "final", "best"],
      rows.map(({cells: [name, , , steps, last, , best]}) => ({cells: [name, steps, last, best]})), [1, 2, 3]));
  }
  return el("div", {}, el("h3", {}, "Last evaluations: interquartile mean with 95 % interval (Agarwal et al. 2021)"),
    table(["group", "runs", "unfinished", "env steps", "final IQM", "95 % interval", "best"], rows, [1, 2, 3, 4, 5, 6]));
}

function differences(data) {
  const names = [...new Set(data.runs.flatMap((run) => run.settings.map((each) => each.name)))];
  const valueOf = (run, name) => (run.settings.find((each) => each.name === name) || {value: "-"}).value;
  const rows = names.map((name) => ({name, values: data.runs.map((run) => valueOf(run, name))}))
    .filter((row) => new Set(row.values).size > 1).map((row) => ({cells: [el("code", {}, row.name), ...row.values]}));
  return section("differences", "Settings that differ", rows.length ? null : "None: all runs have the same ones.",
    rows.length ? el("div", {class: "scroll"}, table(["setting", ...data.runs.map((run) => run.name)], rows)) : null);
}

function cpuPlan(run) {
  if (!run.plan.length) return null;
  const cpus = [...new Set(run.plan.flatMap(([, ids]) => ids))].sort((a, b) => a - b);
  const hint = run.pinned ? "Each role is pinned to its CPUs." : "Roles are not pinned here.";
  if (cpus.length > 64) return section("cpus", "CPU plan", hint, table(["role", "CPUs"], run.plan.map(([role, ids]) => ({cells: [role, ids.join(", ")]}))));
  const color = (role) => (role === "trainer" ? "#009E73" : role === "replay" ? "#E69F00" : role === "gateway" ? "#CC79A7" : "#0072B2");
  const rows = run.plan.map(([role, ids]) => ({cells: [role, ...cpus.map((cpu) => {
    const mark = el("i", {title: ids.includes(cpu) ? `${role}: CPU ${cpu}` : ""});
    if (ids.includes(cpu)) mark.style.background = color(role);
    return mark;
  })]}));
  const made = table(["CPU", ...cpus.map(String)], rows);
  made.className = "cpus";
  return section("cpus", "CPU plan", hint, el("div", {class: "scroll"}, made));
}

function settings(run, view) {
  if (!run.settings.length) return null;
  const words = view.settingsFilter.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = run.settings.filter((each) => (!view.onlyOwn || each.differs) && words.every((word) => `${each.name} ${each.value}`.toLowerCase().includes(word)));
  const rows = shown.map((each) => ({own: each.differs, cells: [el("code", {}, each.name), el("code", {}, each.value), el("code", {}, each.default === null ? "" : each.default), each.set ? "--set" : ""]}));
  return el("div", {class: "scroll"}, table(["setting", "value", "default", "given by"], rows), shown.length ? null : el("p", {class: "hint"}, "No setting fits."));
}

function videos(data) {
  const all = data.runs.flatMap((run) => (run.videos || []).map((video) => ({run, video})));
  if (!all.length) return null;
  const shown = all.filter(({video}) => video.data).map(({run, video}) => el("figure", {},
    el("video", {src: video.data, controls: true, loop: true, muted: true, preload: "metadata"}),
    el("figcaption", {}, data.runs.length > 1 ? `${run.name}: ${video.name}` : video.name)));
  const left = all.filter(({video}) => !video.data).map(({video}) => el("div", {class: "hint"}, `too large for this file: ${video.path}`));
  return section("videos", "Videos", null, el("div", {class: "videos"}, shown), ...left);
}

const versions = (run) => (run.versions.length ? section("versions", "Versions", run.versions.map(([name, version]) => `${name} ${version}`).join(", ")) : null);
