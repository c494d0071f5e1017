// The page: what is chosen, and what is drawn.

const CONFIG = {displaylogo: false, responsive: true, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"]};
const SMALL = {displaylogo: false, responsive: true, modeBarButtons: [["toImage", "resetScale2d"]]};
const FIRST = ["critic_loss", "actor_loss", "alpha", "q_mean", "train/episode_length", "updates_per_s", "env_steps_per_s", "policy_age_updates", "alpha_loss"];
const MOST_CHARTS = 36;
const view = {
  axis: "env_steps", range: null, smooth: 0, log: false, robust: false, filter: "", chosen: null, hidden: new Set(), run: 0,
  onlyOwn: true, settingsFilter: "",
};
let data = null, isLinking = false;

const metricNames = () => [...new Set(data.runs.flatMap((run) => Object.keys(run.metrics)))].sort();
const byId = (id) => document.getElementById(id);

function matching() {
  const words = view.filter.toLowerCase().split(/\s+/).filter(Boolean);
  return metricNames().filter((name) => !words.length || words.some((word) => name.toLowerCase().includes(word)));
}

// While something is typed, all that fits is shown; otherwise what is chosen.
const shownMetrics = () => (view.filter.trim() ? matching() : metricNames().filter((name) => view.chosen.has(name))).slice(0, MOST_CHARTS);

function draw(target, figure) {
  Plotly.react(target, figure.data, figure.layout, target.dataset.metric ? SMALL : CONFIG);
  if (target.dataset.linked && !target.dataset.listens) {
    target.dataset.listens = "1";
    target.on("plotly_relayout", (change) => zoomed(target, change));
  }
}

function zoomed(source, change) {
  if (isLinking) return;
  const range = change["xaxis.range"] || (change["xaxis.range[0]"] !== undefined ? [change["xaxis.range[0]"], change["xaxis.range[1]"]] : null);
  if (!range && !change["xaxis.autorange"]) return;
  view.range = range;
  isLinking = true;
  const others = [...document.querySelectorAll("[data-linked]")].filter((plot) => plot !== source);
  Promise.all(others.map((plot) => Plotly.relayout(plot, range ? {"xaxis.range": range.slice()} : {"xaxis.autorange": true}))).finally(() => { isLinking = false; });
}

function drawLearning() { draw(byId("learning-plot"), learningFigure(data, view)); }

function drawMetrics() {
  const grid = byId("metrics-grid"), names = shownMetrics();
  [...grid.children].filter((plot) => !names.includes(plot.dataset.metric)).forEach((plot) => { Plotly.purge(plot); plot.remove(); });
  names.forEach((name) => {
    const plot = [...grid.children].find((each) => each.dataset.metric === name) || el("div", {class: "plot", "data-metric": name, "data-linked": "1"});
    grid.append(plot);
    draw(plot, metricFigure(data, name, view));
  });
  byId("metrics-chips").replaceChildren(...matching().map((name) => el("button", {
    type: "button", class: view.chosen.has(name) ? "on" : "", "aria-pressed": String(view.chosen.has(name)), onclick: () => {
      if (!view.chosen.delete(name)) view.chosen.add(name);
      drawMetrics();
    },
  }, name)));
  byId("metrics-count").textContent = `${names.length} of ${metricNames().length}${names.length === MOST_CHARTS ? " (as many as fit)" : ""}`;
}

const check = (label, key, redraw) => el("label", {}, el("input", {type: "checkbox", checked: view[key], onchange: (event) => { view[key] = event.target.checked; redraw(); }}), label);

function axisButtons() {
  return Object.entries(AXES).map(([axis, label]) => el("button", {
    type: "button", class: axis === view.axis ? "on" : "", "data-axis": axis, onclick: (event) => {
      view.axis = axis;
      view.range = null;
      [...event.target.parentNode.children].forEach((each) => each.classList.toggle("on", each === event.target));
      drawLearning();
      drawMetrics();
    },
  }, label));
}

function learningSection() {
  const hint = data.comparison && areSingle(data.comparison) ? "Drag to zoom, all curves follow; double-click to go back." : data.comparison ? "Thick: interquartile mean of each group with its 95 % interval (over environment steps); thin: single runs." : "Points: single training episodes. Drag to zoom, all curves follow; double-click to go back.";
  const runs = data.runs.length > 1 ? el("div", {class: "chips"}, data.runs.map((run, k) => {
    const dot = el("span", {class: "swatch"});
    dot.style.background = styleOf(data, k).color;
    return el("button", {type: "button", class: view.hidden.has(k) ? "" : "on", onclick: (event) => {
      if (!view.hidden.delete(k)) view.hidden.add(k);
      event.currentTarget.classList.toggle("on", !view.hidden.has(k));
      drawLearning();
      drawMetrics();
    }}, dot, run.name);
  })) : null;
  return section("learning", "Learning", hint, el("div", {class: "controls"}, el("span", {}, axisButtons())), runs, el("div", {id: "learning-plot", class: "plot", "data-linked": "1"}));
}

function metricsSection() {
  const filter = el("input", {type: "search", id: "metrics-filter", placeholder: "filter: loss speed curriculum", value: view.filter, "aria-label": "filter of metrics", oninput: (event) => { view.filter = event.target.value; drawMetrics(); }});
  const smooth = el("input", {type: "range", min: 0, max: 0.98, step: 0.02, value: view.smooth, "aria-label": "smoothing", oninput: (event) => { view.smooth = Number(event.target.value); drawLearning(); drawMetrics(); }});
  const choose = (label, names) => el("button", {type: "button", onclick: () => { view.chosen = new Set(names()); drawMetrics(); }}, label);
  return section("metrics", "Metrics", "Click names to choose; words in the filter show all that contain one of them.",
    el("div", {class: "controls"}, filter, choose("all", matching), choose("none", () => []), choose("usual", usual), el("label", {}, "smoothing", smooth),
      check("log scale", "log", drawMetrics), check("without outliers", "robust", drawMetrics), el("span", {id: "metrics-count", class: "hint"})),
    el("div", {id: "metrics-chips", class: "chips"}), el("div", {id: "metrics-grid", class: "grid"}));
}

const usual = () => metricNames().filter((name) => FIRST.includes(name));

function ofOneRun() {
  const run = data.runs[view.run], parts = [];
  if (Object.keys(run.time_shares).length) parts.push(section("time", "Where time went", "Of the last start.", el("div", {id: "time-plot", class: "plot"})));
  const rows = el("div", {id: "settings-rows"}, settings(run, view)), again = () => rows.replaceChildren(settings(data.runs[view.run], view) || "");
  const filter = el("input", {type: "search", id: "settings-filter", placeholder: "filter of settings", "aria-label": "filter of settings", value: view.settingsFilter, oninput: (event) => { view.settingsFilter = event.target.value; again(); }});
  parts.push(cpuPlan(run), run.settings.length ? section("settings", "Settings", null, el("div", {class: "controls"}, filter, check("only those that differ from the defaults", "onlyOwn", again)), rows) : null, versions(run));
  return parts;
}

function drawOneRun() {
  byId("one-run").replaceChildren(...ofOneRun().filter(Boolean));
  const run = data.runs[view.run];
  if (byId("time-plot")) draw(byId("time-plot"), timeFigure(run));
}

function navigation() {
  const title = data.runs.length === 1 ? data.runs[0].name : `${data.runs.length} runs`;
  const links = ["overview", "learning", "metrics", "videos", "time", "settings", "versions"].map((id) => (byId(id) ? el("a", {href: `#${id}`}, id) : null));
  return el("nav", {}, el("span", {class: "name"}, title), data.runs.length === 1 ? badge(data.runs[0].state) : null, ...links,
    el("span", {class: "right"}, el("span", {}, `as of ${data.made}`)));
}

function build() {
  const names = data.runs.map((run, k) => el("option", {value: k, selected: k === view.run}, run.name));
  const choice = data.runs.length > 1 ? section("one", "One run", "The parts below are those of", el("select", {"aria-label": "run", onchange: (event) => { view.run = Number(event.target.value); drawOneRun(); }}, names)) : null;
  const parts = [overview(data), learningSection(), metricsSection(), data.runs.length > 1 ? differences(data) : null, videos(data), choice, el("div", {id: "one-run"})];
  byId("app").replaceChildren(el("main", {}, ...parts.filter(Boolean)));
  drawLearning();
  drawMetrics();
  drawOneRun();
  byId("app").prepend(navigation());
}

async function loadPlotly() {
  const packed = Uint8Array.from(atob(byId("plotly").textContent), (char) => char.charCodeAt(0));
  const text = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  const script = document.createElement("script");
  script.textContent = text;
  document.head.append(script);
}

async function main() {
  try {
    data = JSON.parse(byId("data").textContent);
    view.chosen = new Set(usual());
    if (!view.chosen.size) view.chosen = new Set(metricNames().slice(0, 9));
    if (typeof DecompressionStream === "undefined") throw new Error("this browser is too old: it needs Chrome 80, Firefox 113, Safari 16.4 or newer");
    await loadPlotly();
    build();
    document.body.dataset.ready = "yes";
  } catch (error) {
    byId("app").replaceChildren(el("p", {class: "problem"}, `The report can't be drawn: ${error.message}`));
    document.body.dataset.ready = "no";
    throw error;
  }
}

main();
