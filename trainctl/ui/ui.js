// Sorts tables, draws charts and refreshes the page while it is visible. Tables work without it.
"use strict";
const REFRESH = 5000, SOON = 1000;
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const byId = (id) => document.getElementById(id);

function make(name, attributes = {}, ...children) {
  const made = document.createElementNS(`http://www.w3.org/${/^(svg|path|text|circle|title)$/.test(name) ? "2000/svg" : "1999/xhtml"}`, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function button(words, attributes, act) {
  const made = make("button", { type: "button", ...attributes }, ...words);
  made.addEventListener("click", () => act(made));
  return made;
}

// Tables
const orders = {};  // by section: column and direction

function cellValue(cell) {
  const box = cell?.querySelector("input");
  if (box) return box.checked ? 0 : 1;
  const text = cell?.dataset.value ?? cell?.textContent.trim() ?? "";
  return text === "" ? null : isNaN(text) ? text : Number(text);
}

function compare([a], [b], direction) {  // empty cells are last
  if (a === null || b === null) return (a === null) - (b === null);
  return direction * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(b, undefined, { numeric: true }));
}

function sortTable(table, column, direction) {
  const rows = [...table.tBodies[0].rows].map((row) => [cellValue(row.cells[column]), row]);
  table.tBodies[0].append(...rows.sort((a, b) => compare(a, b, direction)).map(([, row]) => row));
  [...table.tHead.rows[0].cells].forEach((cell, i) => cell.setAttribute("aria-sort", i !== column ? "none" : direction > 0 ? "ascending" : "descending"));
}

function makeSortable(table) {
  const key = table.closest("section").id;
  [...table.tHead.rows[0].cells].forEach((cell, column) => cell.replaceChildren(button(cell.childNodes, { class: "sort" }, () => {
    orders[key] = [column, orders[key]?.[0] === column ? -orders[key][1] : 1];
    sortTable(table, ...orders[key]);
  })));
  if (orders[key]) sortTable(table, ...orders[key]);
}

// Charts
const W = 560, H = 220, LEFT = 56, RIGHT = 20, TOP = 10, BOTTOM = 24;
let axis = "step";

function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
  return Array.from({ length: count * 2 + 2 }, (_, i) => (Math.ceil(low / step) + i) * step).filter((at) => at <= high);
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(1);
  return size >= 1e4 ? `${+(value / 1e3).toPrecision(4)}k` : `${+value.toPrecision(5)}`;
}

function elapsed(seconds) {
  const [size, unit] = seconds < 120 ? [1, "s"] : seconds < 7200 ? [60, "min"] : [3600, "h"];
  return `${+(seconds / size).toPrecision(3)} ${unit}`;
}

function stepAt(known, time) {  // what reports no step, as usage, has that of its time
  let low = 0, high = known.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (known[middle][0] < time) low = middle + 1; else high = middle;
  }
  const [[t0, s0], [t1, s1]] = [known[Math.max(0, low - 1)], known[low]];
  return t1 > t0 ? s0 + (s1 - s0) * Math.min(1, Math.max(0, (time - t0) / (t1 - t0))) : s1;
}

function nearest(line, x) {
  return line.x.reduce((best, at, i) => (Math.abs(at - x) < Math.abs(line.x[best] - x) ? i : best), 0);
}

const range = (values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);

function drawChart(title, lines, marks, by, [x0, x1]) {
  const figure = make("figure", { class: "chart" }, make("figcaption", {}, title));
  let [y0, y1] = range(lines.flatMap((line) => line.v));
  const margin = (y1 - y0) * 0.05 || Math.abs(y1) * 0.05 || 1;
  [y0, y1] = [y0 >= 0 && y0 < margin * 2 ? 0 : y0 - margin, y1 + margin];
  const px = (x) => LEFT + ((x - x0) / (x1 - x0)) * (W - LEFT - RIGHT), py = (y) => H - BOTTOM - ((y - y0) / (y1 - y0)) * (H - BOTTOM - TOP);
  const svg = make("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": title });
  const text = (x, y, anchor, words) => svg.append(make("text", { x, y, "text-anchor": anchor }, words));
  const words = (x) => (by === "time" ? elapsed(x) : short(x));
  for (const y of ticks(y0, y1, 4)) {
    svg.append(make("path", { class: "grid", d: `M${LEFT} ${py(y)}H${W - RIGHT}` }));
    text(LEFT - 6, py(y) + 4, "end", short(y));
  }
  for (const x of ticks(x0, x1, 5)) text(px(x), H - 7, "middle", words(x));
  for (const { x, kind, text: name } of marks) {
    const d = `M${px(x)} ${kind === "retry" ? TOP : H - BOTTOM - 7}V${H - BOTTOM}`;
    if (x >= x0 && x <= x1) svg.append(make("path", { class: `mark ${kind}`, d }, make("title", {}, name)));
  }
  const legend = make("ul", { class: "legend" });
  lines.forEach((line, i) => {
    const points = line.x.map((x, n) => `${px(x).toFixed(1)} ${py(line.v[n]).toFixed(1)}`), color = `line c${i % 8}`;
    svg.append(make("path", { class: color, d: `M${points.join("L")}${points.length > 1 ? "" : "h3"}` }));
    const key = make("svg", { viewBox: "0 0 24 8", class: "key" }, make("path", { class: color, d: "M0 4H24" }));
    legend.append(make("li", {}, key, line.name, make("output")));
  });
  const cursor = make("path", { class: "cursor" });
  svg.append(cursor);
  const xOf = (event) => {
    const box = svg.getBoundingClientRect(), x = ((event.clientX - box.left) / box.width) * W;
    return Math.min(x1, Math.max(x0, x0 + ((x - LEFT) / (W - LEFT - RIGHT)) * (x1 - x0)));
  };
  const point = (x) => {
    cursor.setAttribute("d", x === null ? "" : `M${px(x)} ${TOP}V${H - BOTTOM}`);
    all("output", legend).forEach((output, i) => {
      const at = x === null ? -1 : nearest(lines[i], x);
      output.textContent = at < 0 ? "" : `${short(lines[i].v[at])} at ${by === "time" ? "" : "step "}${words(lines[i].x[at])}`;
    });
  };
  svg.addEventListener("pointermove", (event) => point(xOf(event)));
  svg.addEventListener("pointerleave", () => point(null));
  svg.addEventListener("click", (event) => showLog(lines[0].t[nearest(lines[0], xOf(event))]));
  figure.append(svg, legend);
  return figure;
}

function drawCharts() {
  const place = document.querySelector(".charts");
  if (!place) return;
  const { charts, marks: found } = JSON.parse(byId("data").textContent), comparing = byId("compare");
  const every = Math.ceil(found.length / 40), marks = found.filter((mark, i) => mark.kind === "retry" || i % every === 0);
  const lines = charts.flatMap((chart) => chart.lines).filter((line) => line.v.length);
  const start = Math.min(...lines.map((line) => line.t[0]));
  const known = lines.flatMap((line) => line.t.map((time, i) => [time, line.s[i]])).filter(([, step]) => step !== null).sort((a, b) => a[0] - b[0]);
  const by = known.length ? axis : "time";
  for (const line of lines)  // runs that are compared start at the same place
    line.x = line.t.map((time, i) => (by === "time" ? time - (comparing ? line.t[0] : start) : line.s[i] ?? stepAt(known, time)));
  for (const mark of marks) mark.x = by === "time" ? mark.t - start : mark.s ?? (mark.t > known.at(-1)[0] ? NaN : stepAt(known, mark.t));
  const ticked = all("#compare input:checked").map((box) => box.value);
  const buttons = ["step", "time"].map((name) => button([name], { "aria-pressed": name === by }, () => { axis = name; drawCharts(); }));
  place.replaceChildren(...(known.length ? [make("div", { class: "axis", role: "group", "aria-label": "Horizontal axis" }, ...buttons)] : []));
  if (marks.length) place.append(make("p", { class: "axis note" }, "Marks at the bottom are checkpoints, dashed lines are retries."));
  const [x0, x1] = range(lines.flatMap((line) => line.x)), xs = [x0, x1 > x0 ? x1 : x0 + 1];
  for (const chart of charts) {
    const shown = chart.lines.filter((line) => line.v.length && (!line.run || ticked.includes(line.run)));
    if (shown.length) place.append(drawChart(chart.title, shown, marks, by, xs));
  }
  if (!lines.length) place.append(make("p", { class: "note" }, "No values yet."));
}

// The log
const isLive = () => "live" in document.body.dataset;

async function showLog(time) {
  if (!document.querySelector(".log")) return;
  if (byId("follow")) byId("follow").checked = false;
  const find = () => all(".log [data-t]").findIndex((line) => Number(line.dataset.t) >= time);
  if (find() <= 0 && isLive()) await go(new URLSearchParams({ at: time }));
  all(".log .here").forEach((line) => line.classList.remove("here"));
  const line = all(".log [data-t]").at(find());
  line?.classList.add("here");
  line?.scrollIntoView({ block: "center" });
}

function followLog() {
  const log = document.querySelector(".log");
  if (log && byId("follow")?.checked) log.scrollTop = log.scrollHeight;
}

// Refresh: replaces the sections that changed
const seen = {};
const sections = (root) => all("main > :is(section, div)[id], main > form > section[id]", root);
let timer = 0, busy = false;

function replace(section) {
  const old = byId(section.id), focus = all("a, button, input, select", old).indexOf(document.activeElement);
  const scrolled = () => old.querySelector(".tall, .log"), top = scrolled()?.scrollTop;
  seen[section.id] = section.innerHTML;
  old.replaceChildren(...section.childNodes);
  all("table[data-sort]", old).forEach(makeSortable);
  if (top) scrolled().scrollTop = top;
  if (section.id === "curves") drawCharts();
  if (section.id === "log") followLog();
  if (focus >= 0) all("a, button, input, select", old)[focus]?.focus({ preventScroll: true });
}

async function refresh() {
  clearTimeout(timer);
  if (document.hidden || busy) return;
  busy = true;
  try {
    const url = new URL(location.href), follows = byId("follow")?.checked;
    url.searchParams.set("w", Math.round((document.querySelector(".chart svg")?.clientWidth || W) * devicePixelRatio));
    const answer = await fetch(url), fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!answer.ok) throw new Error(answer.statusText);
    for (const section of sections(fresh)) {
      const typing = byId(section.id)?.querySelector("input[type=search]:focus, select:focus");
      if (byId(section.id) && seen[section.id] !== section.innerHTML && !typing) replace(section);
    }
    if (byId("follow") && !follows) byId("follow").checked = false;
    byId("age").textContent = fresh.getElementById("age").textContent;
    document.body.dataset.live = fresh.body.dataset.live;
  } catch {
    byId("age").textContent = "not refreshed: trainctl ui does not respond";
  }
  busy = false;
  schedule();
}

async function go(parameters) {
  history.replaceState(null, "", `?${parameters}`);
  document.activeElement?.blur();
  await refresh();
}

function schedule() {
  clearTimeout(timer);
  if (["yes", "soon"].includes(document.body.dataset.live)) timer = setTimeout(refresh, document.body.dataset.live === "yes" ? REFRESH : SOON);
}

document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : ["yes", "soon"].includes(document.body.dataset.live) && refresh()));
document.addEventListener("submit", (event) => {
  event.preventDefault();
  go(new URLSearchParams(new FormData(event.target)));
});
document.addEventListener("change", ({ target }) => {
  if (target.name === "run") isLive() ? go(new URLSearchParams(new FormData(target.form))) : drawCharts();
});
sections(document).forEach((section) => (seen[section.id] = section.innerHTML));
all("table[data-sort]").forEach(makeSortable);
document.querySelector("#compare > p > button")?.remove();
drawCharts();
followLog();
schedule();
