// Values under the pointer, and zoom. Charts are drawn by the server; each has its values as data and as a table.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
document.body.append(tip);
let chart = null;  // The chart under the pointer: its element, data and marks.
let pressed = null;  // Where a drag began, in units of the chart.

const show = (value) => Math.abs(value) >= 1e5 || (value && Math.abs(value) < 1e-3) ? value.toExponential(2) : `${+value.toPrecision(4)}`;
const fraction = (value, [low, high, , , log]) => log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low || 1);
const place = (value, scale) => scale[2] + Math.max(0, Math.min(1, fraction(value, scale))) * (scale[3] - scale[2]);

function draw(name, attributes) {
  const mark = document.createElementNS(SVG, name);
  Object.entries(attributes).forEach(([key, value]) => mark.setAttribute(key, value));
  chart.marks.append(mark);
}

function leave() {
  chart?.marks.remove();
  chart = null;
  tip.hidden = true;
}

function enter(element) {
  leave();
  chart = { element, data: JSON.parse(element.dataset.chart), marks: document.createElementNS(SVG, "g") };
  chart.marks.setAttribute("pointer-events", "none");
  element.append(chart.marks);
}

function toUnits(event) {
  // The drawing is scaled to its element, whose box has the same proportions.
  const box = chart.element.getBoundingClientRect();
  return (event.clientX - box.left) * chart.element.viewBox.baseVal.width / box.width;
}

function point(event) {
  const at = toUnits(event);
  const { x, series } = chart.data;
  const [, , left, right] = x.scale;
  const height = chart.element.viewBox.baseVal.height;
  chart.marks.replaceChildren();
  if (pressed !== null) {
    const [from, to] = [Math.max(left, Math.min(pressed, at)), Math.min(right, Math.max(pressed, at))];
    draw("rect", { x: from, y: 0, width: Math.max(0, to - from), height, class: "zoomed" });
  }
  const all = series.flatMap((line) => line.points.map((row) => row[0]));
  const nearest = all.reduce((best, value) => Math.abs(place(value, x.scale) - at) < Math.abs(place(best, x.scale) - at) ? value : best, all[0]);
  if (nearest === undefined) return;
  const across = place(nearest, x.scale);
  draw("line", { x1: across, x2: across, y1: 0, y2: height, class: "crosshair" });
  const rows = [`${x.label} ${show(nearest)}`];
  for (const line of series) {
    // Runs measure at other places: the nearest value counts if it is near.
    const row = line.points.reduce((best, other) => !best || Math.abs(other[0] - nearest) < Math.abs(best[0] - nearest) ? other : best, null);
    if (!row || Math.abs(place(row[0], x.scale) - across) > 6) continue;
    draw("circle", { cx: place(row[0], x.scale), cy: place(row[1], line.scale), r: 4, class: `mark ${line.class}` });
    rows.push(`${line.name}: ${show(row[1])}${row.length > 2 ? ` (${show(row[2])} to ${show(row[3])})` : ""}`);
  }
  tip.replaceChildren(...rows.map((text) => Object.assign(document.createElement("div"), { textContent: text })));
  tip.hidden = false;
  const beside = event.clientX + 16 + tip.offsetWidth > innerWidth ? event.clientX - 16 - tip.offsetWidth : event.clientX + 16;
  tip.style.left = `${Math.max(4, beside)}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - tip.offsetHeight - 4))}px`;
}

function zoom(from, to) {
  const address = new URL(location.href);
  for (const [name, value] of [["from", from], ["to", to]]) {
    if (value === null) address.searchParams.delete(name);
    else address.searchParams.set(name, String(+value.toPrecision(5)));
  }
  location.assign(address);
}

document.addEventListener("pointermove", (event) => {
  const element = event.target.closest?.("svg[data-chart]") ?? (pressed === null ? null : chart?.element);
  if (!element) return leave();
  if (element !== chart?.element || !chart.marks.isConnected) enter(element);
  point(event);
});
document.addEventListener("pointerdown", (event) => {
  if (event.button || event.pointerType !== "mouse" || !chart?.element.closest("[data-zoom]")) return;
  pressed = toUnits(event);
  event.preventDefault();
});
document.addEventListener("pointerup", (event) => {
  const start = pressed;
  pressed = null;
  if (start === null || !chart) return;
  const [low, high, left, right] = chart.data.x.scale;
  const [from, to] = [start, toUnits(event)].sort((a, b) => a - b)
    .map((at) => low + (Math.max(left, Math.min(right, at)) - left) / (right - left) * (high - low));
  if (Math.abs(toUnits(event) - start) > 8) zoom(from, to);
});
document.addEventListener("dblclick", (event) => {
  if (event.target.closest?.("[data-zoom] svg[data-chart]")) zoom(null, null);
});
