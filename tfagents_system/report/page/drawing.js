"use strict";
// Figures from the data of the page: each function returns {data, layout} for Plotly.

const COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999"]; // Okabe and Ito.
const DASHES = ["solid", "dash", "dot", "dashdot"];
const AXES = {env_steps: "environment steps", updates: "updates", hours: "hours of training"};
const INK = "#1b2733", SOFT = "#5c6b7a", LINE = "#e3e8ee";
const FONT = {family: "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif", size: 12, color: INK};

// Plotly reads some HTML in texts: names of users have none.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const withAlpha = (hex, alpha) => {
  const part = (k) => parseInt(hex.slice(k, k + 2), 16);
  return `rgba(${part(1)},${part(3)},${part(5)},${alpha})`;
};

function groupOf(data, k) {
  if (!data.comparison) return 0;
  const found = data.comparison.groups.findIndex((group) => group.runs.includes(k));
  return found < 0 ? k : found;
}

function styleOf(data, k) {
  // Of one group alone, its runs have colors of their own.
  const group = data.comparison && data.comparison.groups.length > 1 ? groupOf(data, k) : k;
  return {color: COLORS[group % COLORS.length], dash: DASHES[Math.floor(group / COLORS.length) % DASHES.length]};
}

// The points of a curve and the rows that they are of.
function series(run, name, axis) {
  const metric = run.metrics[name] || {i: [], y: []}, points = {x: [], y: [], rows: []};
  metric.i.forEach((row, k) => {
    points.x.push(run.axes[axis][row]);
    points.y.push(metric.y[k]);
    points.rows.push(row);
  });
  return points;
}

// The mean of values so far, the older the less they count. `weight` of 0 leaves them as they are.
function smoothed(values, weight) {
  if (!weight) return values;
  let mean = 0, norm = 0;
  return values.map((value) => {
    mean = weight * mean + (1 - weight) * value;
    norm = weight * norm + (1 - weight);
    return mean / norm;
  });
}

function baseLayout(extra) {
  return Object.assign({
    font: FONT, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "#fff", margin: {l: 62, r: 14, t: 10, b: 40},
    modebar: {bgcolor: "rgba(255,255,255,0.85)", color: "#9aa7b3", activecolor: "#0072B2"},
    hovermode: "closest", hoverlabel: {font: {size: 12}}, showlegend: false, dragmode: "zoom",
  }, extra);
}

const NUMBERS = {separatethousands: true, minexponent: 9}; // `2,000`, as in learning_curve.png, instead of `2k`.
const xAxis = (title, extra) => Object.assign({
  title: {text: title, standoff: 8}, gridcolor: LINE, zeroline: false, linecolor: "#b9c3ce", ticks: "outside",
  ticklen: 4, tickcolor: "#b9c3ce", automargin: true, ...NUMBERS,
}, extra);
const yAxis = (title, extra) => Object.assign({
  title: {text: title, standoff: 6, font: {size: 12}}, gridcolor: LINE, zeroline: false, automargin: true, ...NUMBERS,
}, extra);

// A line; a marker where there is one point, which a line does not show.
function trace(points, extra) {
  return Object.assign({type: "scatter", mode: points.y.length === 1 ? "markers" : "lines", x: points.x, y: points.y}, extra);
}

const marked = (points) => (points.x.length <= 60 ? {mode: "lines+markers"} : {});

// Learning: returns, and below them whatever changed the task or the agent meanwhile, over the same steps.

function learningFigure(data, view) {
  const panels = ["return", ...panelsOf(data)];
  const traces = data.runs.length > 1 ? comparedReturns(data, view) : ownReturns(data.runs[0], view);
  panels.slice(1).forEach((panel, place) => {
    data.runs.forEach((run, k) => panel.names.forEach((name, n) => {
      if (view.hidden.has(k) || !run.metrics[name]) return;
      const style = data.runs.length > 1 ? styleOf(data, k) : {color: COLORS[n % COLORS.length], dash: "solid"};
      const points = series(run, name, view.axis);
      traces.push(trace(points, {
        name: plain(data.runs.length > 1 ? `${run.name} ${name}` : name), yaxis: `y${place + 2}`,
        line: {color: style.color, dash: style.dash, width: 1.6, shape: panel.steps ? "hv" : "linear"}, showlegend: false,
      }));
    }));
  });
  return {data: traces, layout: learningLayout(panels, view)};
}

function panelsOf(data) {
  const names = [...new Set(data.runs.flatMap((run) => Object.keys(run.metrics)))];
  const success = names.filter((name) => /^(eval|train)_success$/.test(name));
  const changing = names.filter((name) => /^(curriculum|schedule)\//.test(name)).slice(0, 8);
  return [...(success.length ? [{title: "success", names: success}] : []),
    ...changing.map((name) => ({title: name.replace("/", "<br>"), names: [name], steps: true}))];
}

function learningLayout(panels, view) {
  const heights = panels.map((_, k) => (k ? 95 : 360)), gap = 18, total = heights.reduce((a, b) => a + b + gap, -gap);
  const layout = baseLayout({
    height: total + 92, showlegend: true, legend: {orientation: "h", y: 1.01, yanchor: "bottom", x: 0},
    margin: {l: 76, r: 16, t: 42, b: 46}, xaxis: xAxis(AXES[view.axis], {anchor: panels.length > 1 ? `y${panels.length}` : "y"}),
  });
  if (view.range) layout.xaxis.range = view.range.slice();
  let top = total;
  panels.forEach((panel, k) => {
    const title = k ? plain(panel.title).replace("&lt;br&gt;", "<br>") : "return";
    layout[k ? `yaxis${k + 1}` : "yaxis"] = yAxis(title, {domain: [Math.max(0, (top - heights[k]) / total), top / total]});
    if (k) layout[`yaxis${k + 1}`].title.font = {size: 10.5};
    top -= heights[k] + gap;
  });
  return layout;
}

function ownReturns(run, view) {
  const traces = [], episodes = run.episodes;
  if (episodes.return) {
    traces.push({
      type: "scatter", mode: "markers", name: "training episodes", x: episodes[view.axis], y: episodes.return,
      marker: {size: 4.5, color: "#56B4E9", opacity: 0.6},
      customdata: episodes.length.map((length, k) => [length, episodes.worker[k]]),
      hovertemplate: "return %{y}<br>%{customdata[0]} steps, worker %{customdata[1]}<extra></extra>",
    });
  }
  const training = series(run, "train_return", view.axis);
  if (training.x.length) {
    traces.push(trace({x: training.x, y: smoothed(training.y, view.smooth)}, {name: "training, mean", line: {color: "#0072B2", width: 1.6}}));
  }
  const evaluated = series(run, "eval_return", view.axis);
  if (evaluated.x.length) traces.push(...evaluations(run, evaluated));
  if (run.best) {
    traces.push({
      type: "scatter", mode: "markers", name: "best policy", x: [run.best[view.axis]], y: [run.best.y],
      marker: {symbol: "star", size: 15, color: "#E69F00", line: {color: INK, width: 1}},
    });
  }
  return traces;
}

function evaluations(run, evaluated) {
  const byRow = (name) => new Map(run.metrics[name] ? run.metrics[name].i.map((row, k) => [row, run.metrics[name].y[k]]) : []);
  const spread = byRow("eval_return_std"), episodes = byRow("eval_episodes");
  const std = evaluated.rows.map((row) => spread.get(row) || 0);
  const edge = (sign) => ({x: evaluated.x, y: evaluated.y.map((value, k) => value + sign * std[k])});
  const hidden = {mode: "lines", line: {width: 0}, hoverinfo: "skip", showlegend: false, legendgroup: "evaluations"};
  const band = Object.assign({}, hidden, {fill: "tonexty", fillcolor: withAlpha("#D55E00", 0.16)});
  return [
    trace(edge(-1), hidden),
    trace(edge(1), band),
    trace(evaluated, {
      ...marked(evaluated), name: "evaluations, mean and spread",
      legendgroup: "evaluations", line: {color: "#D55E00", width: 2.4}, marker: {size: 6},
      customdata: std.map((value, k) => [value, episodes.has(evaluated.rows[k]) ? `, ${episodes.get(evaluated.rows[k])} episodes` : ""]),
      hovertemplate: "evaluation %{y} ± %{customdata[0]:.4g}%{customdata[1]}<extra></extra>",
    }),
  ];
}

function comparedReturns(data, view) {
  const traces = [];
  data.runs.forEach((run, k) => {
    const evaluated = series(run, "eval_return", view.axis);
    const own = evaluated.x.length ? evaluated : series(run, "train_return", view.axis);
    if (view.hidden.has(k) || !own.x.length) return;
    const {color, dash} = styleOf(data, k);
    traces.push(trace(own, {name: plain(run.name), line: {color, dash, width: 1}, opacity: 0.45, showlegend: false}));
  });
  if (view.axis !== "env_steps") return traces;
  data.comparison.groups.forEach((group, g) => {
    if (!group.curve.steps || group.runs.every((k) => view.hidden.has(k))) return;
    const color = data.comparison.groups.length > 1 ? COLORS[g % COLORS.length] : COLORS[6];
    const dash = DASHES[Math.floor(g / COLORS.length) % DASHES.length];
    const hidden = {mode: "lines", line: {width: 0}, hoverinfo: "skip", showlegend: false, legendgroup: `g${g}`};
    const name = plain(`${group.name} (${group.runs.length} ${group.runs.length === 1 ? "run" : "runs"})`);
    traces.push(trace({x: group.curve.steps, y: group.curve.low}, hidden));
    traces.push(trace({x: group.curve.steps, y: group.curve.high}, Object.assign({}, hidden, {fill: "tonexty", fillcolor: withAlpha(color, 0.18)})));
    traces.push(trace({x: group.curve.steps, y: group.curve.iqm}, {
      ...marked({x: group.curve.steps}), name, legendgroup: `g${g}`, line: {color, dash, width: 2.6}, marker: {size: 5},
      customdata: group.curve.low.map((low, k) => [low, group.curve.high[k], group.curve.counts[k]]),
      hovertemplate: "%{y} [%{customdata[0]}, %{customdata[1]}], %{customdata[2]} runs",
    }));
  });
  return traces;
}

// One chart for each chosen metric.

function metricFigure(data, name, view) {
  const traces = [];
  let values = [];
  data.runs.forEach((run, k) => {
    const points = series(run, name, view.axis);
    if (view.hidden.has(k) || !points.x.length) return;
    const style = data.runs.length > 1 ? styleOf(data, k) : {color: COLORS[0], dash: "solid"};
    if (view.smooth) traces.push(trace(points, {line: {color: style.color, width: 1}, opacity: 0.25, hoverinfo: "skip"}));
    traces.push(trace({x: points.x, y: smoothed(points.y, view.smooth)}, {
      name: plain(run.name), ...marked(points), marker: {size: 3.5}, line: {color: style.color, dash: style.dash, width: 1.6},
      hovertemplate: data.runs.length > 1 ? "%{y:.5g}" : "%{y:.5g}<extra></extra>",
    }));
    values = values.concat(points.y);
  });
  const isLog = view.log && values.length > 0 && values.every((value) => value > 0);
  const layout = baseLayout({
    margin: {l: 50, r: 10, t: 30, b: 30}, title: {text: plain(name), font: {size: 13}, x: 0.02, xanchor: "left", y: 0.97},
    xaxis: xAxis("", {nticks: 6}), yaxis: yAxis("", {type: isLog ? "log" : "linear", nticks: 6}),
  });
  if (view.range) layout.xaxis.range = view.range.slice();
  if (view.robust && values.length > 20) {
    const sorted = values.slice().sort((a, b) => a - b), at = (share) => sorted[Math.floor(share * (sorted.length - 1))];
    const [low, high] = [at(0.02), at(0.98)], margin = 0.08 * (high - low) || 1;
    layout.yaxis.range = isLog ? [Math.log10(low) - 0.1, Math.log10(high) + 0.1] : [low - margin, high + margin];
  }
  return {data: traces, layout};
}

// Where time went in the last start.

const ACTIVITIES = {
  updates: "#009E73", simulator: "#0072B2", policy: "#56B4E9", evaluating: "#E69F00", waiting: "#c9d1d9", idle: "#dfe5ea", other: "#9aa7b3",
  "waiting for the policy": "#c9d1d9", "waiting for the replay server": "#b4bec8", collecting: "#8fb8d6", storing: "#0072B2", drawing: "#009E73",
  "sending minibatches": "#E69F00", snapshots: "#CC79A7", publishing: "#CC79A7", logging: "#D55E00", saving: "#56B4E9",
};
const MORE = ["#D55E00", "#CC79A7", "#8a6100", "#006b4f", "#004a75", "#000000"];
const colorOf = (activity, k) => ACTIVITIES[activity] || MORE[k % MORE.length];

function timeFigure(run) {
  const owners = Object.keys(run.time_shares), traces = [], names = [];
  owners.forEach((owner) => Object.keys(run.time_shares[owner]).forEach((name) => { if (!names.includes(name)) names.push(name); }));
  names.forEach((name, k) => traces.push({
    type: "bar", orientation: "h", name: plain(name), y: owners.map((owner) => `${plain(owner)} time`),
    x: owners.map((owner) => parseFloat(run.time_shares[owner][name] || "0") / 100), marker: {color: colorOf(name, k)},
    hovertemplate: `${plain(name)} %{x:.0%}<extra></extra>`,
  }));
  return {data: traces, layout: baseLayout({
    barmode: "stack", height: 90 + 44 * owners.length, showlegend: true, margin: {l: 110, r: 210, t: 10, b: 30},
    xaxis: xAxis("", {tickformat: ".0%", range: [0, 1]}), yaxis: yAxis("", {autorange: "reversed"}),
  })};
}
