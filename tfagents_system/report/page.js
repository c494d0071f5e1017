"use strict";
// Draws the figures of the page when they come into view; smoothing, log scale and filters are those of its sections.
// Plotly knows no variables of a style sheet: `var(--x)` becomes the colour that it is in the reader's scheme.

const byId = (id) => document.getElementById(id);
const drawn = new Set();
const OF_EVALUATIONS = {mode: "lines", line: {width: 0}, hoverinfo: "skip", showlegend: false, legendgroup: "evaluations"};
const LOOKS = {
  episodes: {mode: "markers", marker: {size: 5, color: "var(--episode)", opacity: 0.7},
    hovertemplate: "return %{y}<br>%{customdata[0]} steps, worker %{customdata[1]}<extra></extra>"},
  training: {line: {color: "var(--trained)", width: 1.6}},
  edge: OF_EVALUATIONS,
  spread: {...OF_EVALUATIONS, fill: "tonexty", fillcolor: "var(--spread)"},
  evaluations: {line: {color: "var(--evaluated)", width: 2.4}, legendgroup: "evaluations",
    hovertemplate: "evaluation %{y} ± %{customdata:.4g}<extra></extra>"},
  best: {mode: "markers", marker: {symbol: "star", size: 15, color: "var(--best)", line: {color: "var(--ink)", width: 1}}},
  metric: {line: {color: "var(--trained)", width: 1.6}, marker: {size: 4}, hovertemplate: "%{y} at step %{x}<extra></extra>"},
};
const AXIS = {
  separatethousands: true, minexponent: 9, gridcolor: "var(--line)", zerolinecolor: "var(--edge)", automargin: true,
  autorange: true,  // Numbers as in learning_curve.png: `2,000`.
};
const LAYOUT = {
  font: {family: "system-ui, sans-serif", size: 12, color: "var(--ink)"},
  paper_bgcolor: "transparent", plot_bgcolor: "transparent",
  hoverlabel: {bgcolor: "var(--card)", bordercolor: "var(--edge)", font: {color: "var(--ink)"}},
  legend: {orientation: "h", x: 0, y: 0, yref: "container", yanchor: "bottom"},
};
const MOST_MARKS = 60;  // On a line.
let figures = null;

function coloured(content) {
  const probe = document.body.appendChild(document.createElement("i"));
  const colour = (variable) => { probe.style.color = variable; return getComputedStyle(probe).color; };
  const result = JSON.parse(JSON.stringify(content).replace(/var\(--\w+\)/g, colour));
  probe.remove();
  return result;
}

// The mean of values so far, the older the less they count.
function smoothed(values, weight) {
  let mean = 0, norm = 0;
  return values.map((value) => {
    mean = weight * mean + (1 - weight) * value;
    norm = weight * norm + (1 - weight);
    return mean / norm;
  });
}

const isOfMetric = (plot) => plot.closest("#metrics") !== null;

function draw(plot) {
  const {unit, curves} = figures[plot.dataset.figure], isMetric = isOfMetric(plot);
  const weight = isMetric ? Number(byId("smoothing").value) : 0;
  const isLog = isMetric && byId("log").checked && curves.every((curve) => curve.y.every((value) => value > 0));
  const traces = curves.map(({look, ...curve}) => ({
    mode: curve.y.length <= MOST_MARKS ? "lines+markers" : "lines", ...LOOKS[look], ...curve, y: smoothed(curve.y, weight),
  }));
  const titles = ["environment steps", unit].map((text) => ({text, standoff: 8}));
  const layout = {
    ...LAYOUT, height: isMetric ? 230 : 470, showlegend: !isMetric,
    margin: isMetric ? {l: 60, r: 12, t: 10, b: 44} : {l: 70, r: 16, t: 12, b: 60},
    xaxis: {...AXIS, title: titles[0], zeroline: false}, yaxis: {...AXIS, title: titles[1], type: isLog ? "log" : "linear"},
  };
  plot.style.height = `${layout.height}px`;
  Plotly.react(plot, coloured(traces), coloured(layout), {displayModeBar: false, responsive: true});
  drawn.add(plot);
}

function filter(event) {
  const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean), section = event.target.closest("section");
  section.querySelectorAll("[data-text]").forEach((item) => {
    item.hidden = words.length > 0 && !words.some((word) => item.dataset.text.includes(word));
  });
  if (words.length) section.querySelectorAll("details").forEach((details) => { details.open = true; });
}

async function main() {
  const packed = Uint8Array.from(atob(byId("plotly").textContent), (char) => char.charCodeAt(0));
  const script = document.createElement("script");
  script.textContent = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  document.head.append(script);
  figures = JSON.parse(byId("figures").textContent);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach(draw));
  const observer = new IntersectionObserver((entries) => entries.forEach(({isIntersecting, target}) => {
    if (isIntersecting && !drawn.has(target)) draw(target);
  }), {rootMargin: "400px"});
  document.querySelectorAll("[data-figure]").forEach((plot) => observer.observe(plot));
  document.querySelectorAll("input[type=search]").forEach((input) => input.addEventListener("input", filter));
  const again = () => [...drawn].filter(isOfMetric).forEach(draw);
  ["smoothing", "log"].forEach((id) => byId(id)?.addEventListener("input", again));
  document.body.dataset.ready = "yes";
}

main().catch((error) => {
  document.querySelector("main").prepend(`The curves can't be drawn, a newer browser may: ${error.message}`);
  throw error;
});
