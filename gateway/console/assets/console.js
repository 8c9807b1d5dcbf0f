// The overview: a grid of models by pods, kept up to date by server-sent events of what changed.
"use strict";

const state = JSON.parse(document.getElementById("document").textContent);
const grid = document.getElementById("grid");
const FIXED_COLUMNS = grid.tHead.rows[0].cells.length;
const status = document.getElementById("status");
const chart = document.getElementById("chart");
let addPoints = drawChart(chart);
let drawnPods = null;
const last = document.getElementById("last");

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 1000 && unit < 4) { count /= 1000; unit += 1; }
  return `${Number(count.toPrecision(3))} ${units[unit]}`;
}

function memoryBar(pod) {
  const space = "http://www.w3.org/2000/svg";
  const bar = document.createElementNS(space, "svg");
  const text = `device ${bytes(pod.device_bytes)} of ${bytes(pod.memory_bytes)}, host ${bytes(pod.host_bytes)}, disk ${bytes(pod.disk_bytes)}`;
  for (const [key, value] of [["class", "memory"], ["role", "img"], ["aria-label", text], ["viewBox", "0 0 100 10"], ["preserveAspectRatio", "none"]]) bar.setAttribute(key, value);
  const share = pod.memory_bytes ? 100 * pod.device_bytes / pod.memory_bytes : 0;
  for (const [className, width] of [["ground", 100], ["used", Math.min(share, 100)]]) {
    const part = document.createElementNS(space, "rect");
    part.setAttribute("class", className);
    part.setAttribute("width", width);
    part.setAttribute("height", 10);
    bar.append(part);
  }
  return bar;
}

function podNames() {
  const pods = state.pods;
  const place = (name) => `${pods[name].node}\n${pods[name].accelerator}\n${name}`;
  return Object.keys(pods).sort((one, other) => place(one) < place(other) ? -1 : 1);
}

function headCell(name) {
  const pod = state.pods[name];
  const cell = element("th", name);
  cell.scope = "col";
  cell.append(element("small", `${pod.node}, ${pod.accelerator}${pod.phase === "ready" ? "" : `, ${pod.phase}`}`));
  if (pod.slots !== undefined) {
    cell.append(element("small", `${pod.busy} of ${pod.slots} slots`), memoryBar(pod));
    cell.append(element("small", `${bytes(pod.device_bytes)} of ${bytes(pod.memory_bytes)}`));
    if (pod.host_bytes) cell.append(element("small", `host ${bytes(pod.host_bytes)}`));
    if (pod.disk_bytes) cell.append(element("small", `disk ${bytes(pod.disk_bytes)}`));
  }
  return cell;
}

function progress(load, model, pod) {
  const text = element("small", load.text);
  if (load.share === null) return [text];
  const bar = element("progress");
  bar.value = load.share;
  bar.setAttribute("aria-label", `Load of ${model} at ${pod}`);
  return [bar, text];
}

function row(name, pods) {
  const model = state.rows[name];
  const made = element("tr");
  const head = element("th");
  const link = element("a", name);
  link.href = "/console/models/" + name.split("/").map(encodeURIComponent).join("/");
  head.scope = "row";
  head.append(link);
  const places = pods.filter((pod) => model.cells[pod]).map((pod) => `${model.cells[pod]} at ${pod}`);
  head.append(element("small", places.join(", ") || "in the object storage only", "narrow"));
  if (model.traffic) head.append(element("small", model.traffic));
  if (model.pinned) head.append(element("small", "pinned"));
  if (model.failure) head.append(element("small", model.failure, "bad"));
  made.append(head, element("td", model.rps), element("td", model.expected_rps || "-"), element("td", model.queued));
  for (const pod of pods) {
    const cell = element("td"), where = model.cells[pod];
    if (where) cell.append(element("span", where, where.split(" ")[0]));
    const load = model.loads[pod];
    if (load) cell.append(...progress(load, name, pod));
    if (where && model.why[pod]) cell.append(element("small", `preloaded: ${model.why[pod]}`));
    made.append(cell);
  }
  return made;
}

function draw(delta, before) {
  if (delta.totals) {
    for (const place of document.querySelectorAll("[data-total]")) {
      const value = delta.totals[place.dataset.total];
      place.textContent = value === null || value === undefined ? "-" : value;
    }
    const age = delta.totals.age_s;
    const text = age > 3 ? `This gateway's copy of the cluster is ${age} s old.` : "";
    if (status.textContent !== text) status.textContent = text;
  }
  const pods = podNames();
  const head = grid.tHead.rows[0], body = grid.tBodies[0];
  if (delta.pods) {
    while (head.cells.length > FIXED_COLUMNS) head.deleteCell(FIXED_COLUMNS);
    head.append(...pods.map(headCell));
  }
  if (pods.join("\n") !== drawnPods || delta.order) {
    drawnPods = pods.join("\n");
    const focused = document.activeElement && document.activeElement.getAttribute("href");
    last.textContent = Number(last.dataset.offset) + state.order.length;
    body.replaceChildren(...state.order.map((name) => row(name, pods)));
    const again = focused && [...body.querySelectorAll("a")].find((each) => each.getAttribute("href") === focused);
    if (again) again.focus();
    return;
  }
  for (const name of state.order) {
    if (JSON.stringify(before[name]) === JSON.stringify(state.rows[name])) continue;
    const old = body.rows[state.order.indexOf(name)];
    if (old && !old.contains(document.activeElement)) old.replaceWith(row(name, pods));
  }
}

function merge({ points, ...delta }) {
  const before = state.rows;
  Object.assign(state, delta);
  if (points) addPoints(points.map(inOrder));
  draw(delta, before);
}

draw(state, {});
let isFresh = false;
follow(chart.dataset.events + location.search, (delta) => {
  if (isFresh) {  // the first event of a connection has everything
    isFresh = false;
    chart.textContent = "";
    addPoints = drawChart(chart);
  }
  merge(delta);
}, (isOpen) => {
  isFresh = isOpen;
  if (!isOpen) status.textContent = "The gateway does not answer; trying again.";
});
