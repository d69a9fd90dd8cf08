// What the page does beyond being read: links open their step, boxes light up their ancestors, charts follow the
// pointer, digests are copied, steps are filtered. Without script the page still reads.
"use strict";

// A very large run carries most of its steps compressed (they were escaped when they were written). Groups of them become
// elements one by one when the page stands, or at once when a link or the filter wants them.
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(plain).text());
}

const expanding = new WeakMap();

function expand(group) {
  if (!expanding.has(group)) {
    const fill = async () => {
      if (group.dataset.rows) group.insertAdjacentHTML("beforeend", (await unpack(group.dataset.rows)).join(""));
      delete group.dataset.rows;
    };
    expanding.set(group, fill());
  }
  return expanding.get(group);
}

async function expandAll({ leisurely }) {
  for (const group of document.querySelectorAll(".steps[data-rows]")) {
    if (leisurely) await new Promise((resume) => requestIdleCallback(resume, { timeout: 500 }));
    await expand(group);
  }
}

// A link to a step opens it.
async function openTarget() {
  const id = location.hash.slice(1);
  const position = /^s(\d+)$/.exec(id);
  const first = document.querySelector(".steps");
  if (position && first) {
    const group = document.querySelectorAll(".steps")[Math.floor(Number(position[1]) / first.children.length)];
    if (group) await expand(group);
  }
  const target = document.getElementById(id);
  if (target && target.tagName === "DETAILS") {
    target.open = true;
    target.scrollIntoView({ block: "start" });
  }
}
addEventListener("hashchange", openTarget);
document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  if (link && link.getAttribute("href") === location.hash) openTarget();
});

// Its details are made when a step is opened: from what its group carries, or from the server.
const unpacked = new WeakMap();

async function detailsOf(step) {
  if (step.dataset.source) {
    const answer = await fetch(step.dataset.source);
    return answer.ok ? answer.text() : '<p class="note">The server has no details of this step.';
  }
  const row = step.parentElement;
  const group = row.parentElement;
  if (!unpacked.has(group)) unpacked.set(group, unpack(group.dataset.details));
  return (await unpacked.get(group))[Array.prototype.indexOf.call(group.children, row)];
}

document.addEventListener(
  "toggle",
  async (event) => {
    const step = event.target;
    if (!step.open || !step.matches(".steps details") || step.dataset.unfolding || step.children.length > 1) return;
    step.dataset.unfolding = "yes";
    step.insertAdjacentHTML("beforeend", await detailsOf(step));
  },
  true,
);

// Lineage: a box under the pointer or with focus lights up itself and all that it was made from.
function traceLineage(svg) {
  const boxes = new Map(Array.from(svg.querySelectorAll(".box"), (box) => [box.dataset.index, box]));
  const edges = Array.from(svg.querySelectorAll(".edge"));
  const upstream = (box) => box.dataset.upstream.split(" ").filter(Boolean);

  function trace(box) {
    const lit = new Set();
    const waiting = box ? [box.dataset.index] : [];
    while (waiting.length) {
      const index = waiting.pop();
      if (lit.has(index)) continue;
      lit.add(index);
      waiting.push(...upstream(boxes.get(index)));
    }
    svg.classList.toggle("tracing", lit.size > 0);
    boxes.forEach((each, index) => each.classList.toggle("lit", lit.has(index)));
    edges.forEach((edge) => edge.classList.toggle("lit", lit.has(edge.dataset.from) && lit.has(edge.dataset.to)));
  }

  // The view opens at what failed, or at the targets.
  const focus = svg.querySelector("[data-focus] rect");
  const view = svg.parentElement;
  if (focus) {
    const [box, frame] = [focus.getBoundingClientRect(), view.getBoundingClientRect()];
    view.scrollLeft += box.left + box.width / 2 - frame.left - view.clientWidth / 2;
    view.scrollTop += box.top + box.height / 2 - frame.top - view.clientHeight / 2;
  }
  for (const name of ["pointerover", "focusin"]) svg.addEventListener(name, (event) => trace(event.target.closest(".box")));
  for (const name of ["pointerleave", "focusout"]) svg.addEventListener(name, () => trace(null));
}

// Charts: the values at the step nearest to the pointer, or to where the arrow keys have moved.
const number = new Intl.NumberFormat("en", { maximumSignificantDigits: 6 });

function shape(tag, attributes, parent) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  parent.append(made);
  return made;
}

// Position in the ascending points of the one whose x is nearest.
function nearest(points, x) {
  let low = 0;
  let high = points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - points[low - 1][0] < points[low][0] - x ? low - 1 : low;
}

function followPointer(plot) {
  const readout = plot.closest("figure").querySelector(".readout");
  const atRest = readout.textContent;
  let chart = null;
  let at = null;

  // The points are parsed, and the crosshair made, when the chart is first touched.
  function prepare() {
    const series = JSON.parse(plot.dataset.series);
    const marks = shape("g", { "aria-hidden": "true" }, plot);
    const cross = shape("line", { class: "cross", y1: 0, y2: "100%" }, marks);
    const dots = series.map((_, index) => shape("circle", { class: `dot series-${index % 8}`, r: 4 }, marks));
    return { series, marks, cross, dots, range: JSON.parse(plot.dataset.range) };
  }

  // With more lines than there are colours, the one nearest to the height is named and stands out.
  function show(x, height = 0.5) {
    chart ??= prepare();
    const [left, right, low, high] = chart.range;
    at = x;
    const said = [];
    const away = chart.series.map(({ points }) => {
      const y = points[nearest(points, x)][1];
      return y === null ? Infinity : Math.abs(1 - (y - low) / (high - low) - height);
    });
    const only = chart.series.length > 6 ? away.indexOf(Math.min(...away)) : null;
    plot.querySelectorAll(".line").forEach((line, index) => line.classList.toggle("faint", only !== null && index !== only));
    chart.series.forEach(({ label, points }, index) => {
      const [px, py] = points[nearest(points, x)];
      if (index === 0) at = px;
      const dot = chart.dots[index];
      const shown = py !== null && (only === null || index === only);
      dot.setAttribute("visibility", shown ? "visible" : "hidden");
      dot.setAttribute("cx", `${(100 * (px - left)) / (right - left)}%`);
      dot.setAttribute("cy", `${py === null ? 0 : 100 - (100 * (py - low)) / (high - low)}%`);
      const value = py === null ? "no value" : number.format(py);
      if (only === null || index === only) said.push(chart.series.length > 1 ? `${label} ${value}` : value);
    });
    const across = `${(100 * (at - left)) / (right - left)}%`;
    chart.cross.setAttribute("x1", across);
    chart.cross.setAttribute("x2", across);
    chart.marks.removeAttribute("visibility");
    readout.textContent = `${plot.dataset.x} ${number.format(at)}: ${said.join(", ")}`;
  }

  function hide() {
    if (chart) chart.marks.setAttribute("visibility", "hidden");
    plot.querySelectorAll(".faint").forEach((line) => line.classList.remove("faint"));
    readout.textContent = atRest;
    at = null;
  }

  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const [left, right] = chart ? chart.range : JSON.parse(plot.dataset.range);
    const across = Math.min(Math.max(event.clientX - box.left, 0), box.width) / box.width;
    show(left + across * (right - left), (event.clientY - box.top) / box.height);
  });
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[event.key];
    if (!move) return;
    event.preventDefault();
    chart ??= prepare();
    const points = chart.series[0].points;
    const from = at === null ? (move > 0 ? -1 : points.length) : nearest(points, at);
    show(points[Math.min(Math.max(from + move, 0), points.length - 1)][0]);
  });
}

// Digests: a click shows the whole of one and copies it where the browser lets a page do so.
document.addEventListener("click", async (event) => {
  const button = event.target.closest(".digest");
  if (!button) return;
  button.textContent = button.dataset.full;
  getSelection().selectAllChildren(button);
  try {
    await navigator.clipboard.writeText(button.dataset.full);
  } catch {
    // It stays selected, so that it can be copied by hand.
  }
});

// Filter: by any part of name, reason or address, and by outcome.
function filterSteps(form) {
  const [text, outcome, count] = ["input", "select", "output"].map((name) => form.querySelector(name));
  let steps = null;
  function listed() {
    return Array.from(document.querySelectorAll(".steps > li"), (row) => {
      const name = row.querySelector(".name");
      return { row, words: `${name.textContent} ${name.firstChild.title}`.toLowerCase() };
    });
  }
  async function apply() {
    if (document.querySelector(".steps[data-rows]")) await expandAll({ leisurely: false });
    steps ??= listed();
    const wanted = text.value.trim().toLowerCase();
    let shown = 0;
    for (const { row, words } of steps) {
      const matches = words.includes(wanted) && (!outcome.value || row.classList.contains(`outcome-${outcome.value}`));
      row.hidden = !matches;
      shown += matches;
    }
    count.textContent = shown === steps.length ? `${shown} steps` : `${shown} of ${steps.length} steps`;
  }
  form.hidden = false;
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
}

// Tables: a heading sorts by its column, a second time the other way, a third time as it was recorded.
function sortable(table) {
  const body = table.tBodies[0];
  const recorded = Array.from(body.rows);
  const headings = Array.from(table.tHead.rows[0].cells);
  const key = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
  };
  const empty = (value) => value === "" || value === "–" || Number.isNaN(value);
  function compare(a, b) {
    if (empty(a) || empty(b)) return 0;
    return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  }
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.className = "sort";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const now = { ascending: "descending", descending: null }[heading.ariaSort];
      const direction = now === undefined ? "ascending" : now;
      headings.forEach((each) => (each.ariaSort = null));
      heading.ariaSort = direction;
      const sign = direction === "descending" ? -1 : 1;
      const rows = recorded.map((row) => [key(row, column), row]);
      // What has no value stands last, whichever way.
      if (direction) rows.sort(([a], [b]) => empty(a) - empty(b) || sign * compare(a, b));
      body.append(...rows.map(([, row]) => row));
    });
  });
}

function enliven() {
  document.querySelectorAll(".sortable").forEach(sortable);
  document.querySelectorAll(".lineage").forEach(traceLineage);
  document.querySelectorAll(".plot").forEach(followPointer);
  document.querySelectorAll(".filter").forEach(filterSteps);
  expandAll({ leisurely: true });
}

enliven();
openTarget();
