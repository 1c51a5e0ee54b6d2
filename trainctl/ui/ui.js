// Sorts tables, draws charts and refreshes the page while it is visible. Tables work without it.
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const byId = (id) => document.getElementById(id);

function make(name, attributes, ...children) {
  const space = /^(svg|path|text|title)$/.test(name) ? "2000/svg" : "1999/xhtml";
  const made = document.createElementNS(`http://www.w3.org/${space}`, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Tables
const orders = {};  // by table: column and direction

function sortTable(table) {  // empty cells are last
  const [column, direction] = orders[table.id] ?? [];
  if (column === undefined || !table.tHead) return;
  const text = ({ cells }) => cells[column].dataset.value ?? cells[column].textContent.trim();
  const order = (a, b) => (a === "") - (b === "") || direction * (a - b || a.localeCompare(b, undefined, { numeric: true }));
  table.tBodies[0].append(...[...table.tBodies[0].rows].sort((a, b) => order(text(a), text(b))));
  [...table.tHead.rows[0].cells].forEach((cell, i) => { cell.ariaSort = i !== column ? null : direction > 0 ? "ascending" : "descending"; });
}

document.addEventListener("click", ({ target }) => {
  const heading = target.closest(".sort")?.parentElement, table = heading?.closest("table");
  if (!table) return;
  orders[table.id] = [heading.cellIndex, heading.ariaSort === "ascending" ? -1 : 1];
  sortTable(table);
});

// Charts
const W = 560, H = 220, LEFT = 56, RIGHT = 20, TOP = 10, BOTTOM = 24;
const range = (values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
const scale = ([low, high], [from, to]) => (value) => from + ((value - low) / (high - low)) * (to - from);
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 }).format;
const nearest = (xs, x) => xs.reduce((best, at, i) => (Math.abs(at - x) < Math.abs(xs[best] - x) ? i : best), 0);

function ticks([low, high], count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
  return Array.from({ length: count + 2 }, (_, i) => (Math.ceil(low / step) + i) * step).filter((at) => at <= high);
}

function elapsed(seconds) {
  const [size, unit] = seconds < 120 ? [1, "s"] : seconds < 7200 ? [60, "min"] : [3600, "h"];
  return `${+(seconds / size).toPrecision(3)} ${unit}`;
}

function drawChart(title, lines, marks, by, xs) {
  const [low, high] = range(lines.flatMap((line) => line.v)), margin = (high - low || Math.abs(high) || 1) * 0.05;
  const ys = [low >= 0 && low < margin * 2 ? 0 : low - margin, high + margin];
  const px = scale(xs, [LEFT, W - RIGHT]), py = scale(ys, [H - BOTTOM, TOP]);
  const point = (x, y) => `${px(x).toFixed(1)} ${py(y).toFixed(1)}`;
  const words = (x) => (by === "t" ? elapsed(x) : short(x));
  const cursor = make("path", { class: "cursor" });
  const svg = make(
    "svg",
    { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": title },
    ...ticks(ys, 6).map((y) => make("path", { class: "grid", d: `M${LEFT} ${py(y)}H${W - RIGHT}` })),
    ...ticks(ys, 6).map((y) => make("text", { x: LEFT - 6, y: py(y) + 4, "text-anchor": "end" }, short(y))),
    ...ticks(xs, 5).map((x) => make("text", { x: px(x), y: H - 7, "text-anchor": "middle" }, words(x))),
    ...marks.filter(({ x }) => x >= xs[0] && x <= xs[1]).map(({ x, top, kind }) => make("path", { class: `mark ${kind}`, d: `M${px(x)} ${top}V${H - BOTTOM}` })),
    ...lines.map(({ x, v }, i) => make("path", { class: `line c${i % 8}`, d: `M${x.map((at, n) => point(at, v[n])).join("L")}h.1` })),
    cursor,
  );
  const outputs = lines.map(() => make("output", {}));
  const key = (i) => make("svg", { viewBox: "0 0 24 8", class: "key" }, make("path", { class: `line c${i % 8}`, d: "M0 4H24" }));
  const legend = make("ul", { class: "legend" }, ...lines.map((line, i) => make("li", {}, key(i), line.name, outputs[i])));
  const inside = ({ clientX, clientY }) => new DOMPoint(clientX, clientY).matrixTransform(svg.getScreenCTM().inverse());
  const xOf = (event) => scale([LEFT, W - RIGHT], xs)(inside(event).x);
  svg.addEventListener("pointermove", (event) => {
    const x = Math.min(xs[1], Math.max(xs[0], xOf(event)));
    cursor.setAttribute("d", `M${px(x)} ${TOP}V${H - BOTTOM}`);
    lines.forEach((line, i) => {
      const at = nearest(line.x, x);
      outputs[i].textContent = `${short(line.v[at])} at ${by === "t" ? "" : "step "}${words(line.x[at])}`;
    });
  });
  svg.addEventListener("click", (event) => showLog(lines[0].t[nearest(lines[0].x, xOf(event))]));
  return make("figure", { class: "chart" }, make("figcaption", {}, title), svg, legend);
}

function marksOf(saved, line) {  // checkpoints, and where the step of a line went back
  const retries = line.s.map((s, i) => ({ kind: "retry", top: TOP, t: line.t[i], s })).filter(({ s }, i) => s < line.s[i - 1]);
  return [...saved.map(([t, s]) => ({ kind: "checkpoint", top: H - BOTTOM - 7, t, s })), ...retries];
}

function drawCharts() {
  if (!byId("data")) return;
  const data = JSON.parse(byId("data").textContent), comparing = byId("compare");
  const lines = data.lines.filter((line) => line.t.length);
  const ticked = all("#compare :checked").map((box) => box.value), hasSteps = (line) => line.s.some(Boolean);
  const by = lines.some(hasSteps) ? document.querySelector("[name=axis]:checked").value : "t";
  const shown = lines.filter((line) => (by === "t" || hasSteps(line)) && (!comparing || ticked.includes(line.run)));
  const start = Math.min(...lines.map((line) => line.t[0]));
  for (const line of shown)  // runs that are compared start at the same place
    line.x = by === "s" ? line.s : line.t.map((time) => time - (comparing ? line.t[0] : start));
  const [low, high] = range(shown.flatMap((line) => line.x)), xs = [low, high > low ? high : low + 1];
  const marks = comparing || !shown.length ? [] : marksOf(data.saved, [...shown].sort((a, b) => b.t.length - a.t.length)[0]);
  for (const mark of marks) mark.x = by === "s" ? mark.s ?? NaN : mark.t - start;
  const drawn = [...Map.groupBy(shown, (line) => line.title)].map(([title, its]) => drawChart(title, its, marks, by, xs));
  byId("charts").replaceChildren(...(drawn.length ? drawn : [make("p", { class: "note" }, "No values yet.")]));
}

// The log
async function showLog(time) {
  const log = byId("log"), find = () => all("[data-t]", log).find((line) => Number(line.dataset.t) >= time);
  if (!log) return;
  if (document.body.dataset.live && [undefined, log.firstElementChild].includes(find())) await go(new URLSearchParams({ at: time }));
  all(".here").forEach((line) => line.classList.remove("here"));
  const line = find() ?? log.lastElementChild;
  line?.classList.add("here");
  line?.scrollIntoView({ block: "center" });
}

// Refresh: replaces the parts that changed
const seen = Object.fromEntries(all(".part").map((part) => [part.id, part.innerHTML]));
let timer = 0;

function replace(part) {
  const old = byId(part.id), focused = () => all("a, button, input", old);
  if (!old || seen[part.id] === part.innerHTML) return;
  seen[part.id] = part.innerHTML;
  const focus = focused().indexOf(document.activeElement), follows = old.scrollTop + old.clientHeight > old.scrollHeight - 5;
  old.replaceChildren(...part.childNodes);
  sortTable(old);
  focused()[focus]?.focus({ preventScroll: true });
  if (part.id === "data") drawCharts();
  if (part.id === "log" && follows) old.scrollTop = old.scrollHeight;
}

async function refresh() {
  try {
    const { href } = location, answer = await fetch(href);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!answer.ok) throw new Error(answer.statusText);
    if (href !== location.href) return;  // another refresh is under way
    all(".part", fresh).forEach(replace);
    document.body.dataset.live = fresh.body.dataset.live;
  } catch {
    byId("age").textContent = "not refreshed: trainctl ui does not respond";
  }
  schedule();
}

function schedule() {
  const pause = { yes: 5000, soon: 1000 }[document.body.dataset.live];
  clearTimeout(timer);
  if (pause) timer = setTimeout(() => document.hidden || refresh(), pause);
}

function go(parameters) {
  history.replaceState(null, "", `?${parameters}`);
  return refresh();
}

document.addEventListener("visibilitychange", () => document.hidden || schedule());
document.addEventListener("change", ({ target }) => {
  if (target.name === "axis" || !document.body.dataset.live) drawCharts();
  else if (target.name === "run") go(new URLSearchParams(new FormData(target.form)));
});
drawCharts();
byId("log")?.scrollTo(0, byId("log").scrollHeight);
schedule();
