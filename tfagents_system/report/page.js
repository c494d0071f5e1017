"use strict";
// Draws the figures of the page when they come into view; smoothing, log scale and filters are those of its sections.

const byId = (id) => document.getElementById(id);
const drawn = new Set();
let figures = null;

// The mean of values so far, the older the less they count.
function smoothed(values, weight) {
  let mean = 0, norm = 0;
  return values.map((value) => {
    mean = weight * mean + (1 - weight) * value;
    norm = weight * norm + (1 - weight);
    return mean / norm;
  });
}

function draw(plot) {
  const {data, layout} = figures[plot.dataset.figure], isMetric = "text" in plot.dataset;
  const weight = isMetric ? Number(byId("smoothing").value) : 0;
  const isLog = isMetric && byId("log").checked && data.every((trace) => trace.y.every((value) => value > 0));
  const traces = weight ? data.map((trace) => ({...trace, y: smoothed(trace.y, weight)})) : data;
  if (isMetric) layout.yaxis = {...layout.yaxis, type: isLog ? "log" : "linear", autorange: true};
  plot.style.height = `${layout.height}px`;
  Plotly.react(plot, traces, layout, {displaylogo: false, responsive: true});
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
  const observer = new IntersectionObserver((entries) => entries.forEach(({isIntersecting, target}) => {
    if (isIntersecting && !drawn.has(target)) draw(target);
  }), {rootMargin: "400px"});
  document.querySelectorAll("[data-figure]").forEach((plot) => observer.observe(plot));
  document.querySelectorAll("input[type=search]").forEach((input) => input.addEventListener("input", filter));
  const again = () => [...drawn].filter((plot) => "text" in plot.dataset).forEach(draw);
  ["smoothing", "log"].forEach((id) => byId(id)?.addEventListener("input", again));
  document.body.dataset.ready = "yes";
}

main().catch((error) => {
  document.querySelector("main").prepend(`The curves can't be drawn, a newer browser may: ${error.message}`);
  throw error;
});
