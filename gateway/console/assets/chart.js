// Charts of requests per second, fed by server-sent events; and the form that sends a request.
"use strict";

const KEPT_POINTS = 600;
const CHART_HEIGHT = 130;

const REQUESTS = [["failures/s", "--bad"], ["cold starts/s", "--loading"], ["requests/s", "--host"]];  // the last one is drawn on top
const LEVELS = [["copies on devices", "--device"]];
const FORECAST = [["requests/s here, mean of a minute", "--host"], ["expected in the pool, mean", "--loading"], ["median", "--faint"], ["99 % below", "--faint"]];
const BAND = [{ series: [4, 3], fill: "--band" }];  // between the last two lines
const MEAN_S = 60;
const TIME_STEPS = [60, 120, 300, 600];  // seconds between labels, which show minutes
const inOrder = ([at, requests, cold, failed]) => [at, failed, cold, requests];

function drawChart(place, lines = REQUESTS, bands = []) {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axis = { stroke: colour("--text"), grid: { stroke: colour("--line"), width: 1 } };
  const data = [[], ...lines.map(() => [])];
  const width = () => Math.max(place.clientWidth, 240);
  const plot = new uPlot({
    width: width(), height: CHART_HEIGHT, legend: { live: false },
    scales: { x: { range: (_, low, high) => { const end = high || Date.now() / 1000; return [end - KEPT_POINTS, end]; } }, y: { range: (_, low, high) => [0, Math.max(high, 1)] } },
    axes: [{ ...axis, incrs: TIME_STEPS, values: (_, seconds) => seconds.map((each) => new Date(each * 1000).toISOString().slice(11, 16)) }, axis],
    bands: bands.map((band) => ({ ...band, fill: colour(band.fill) })),
    series: [
      {},
      ...lines.map(([label, name]) => ({ label, points: { show: false }, stroke: colour(name), width: 2 })),
    ],
  }, data, place);
  addEventListener("resize", () => plot.setSize({ width: width(), height: CHART_HEIGHT }));
  return (points) => {
    for (const point of points) point.forEach((value, column) => data[column].push(value));
    const extra = data[0].length - KEPT_POINTS;
    if (extra > 0) data.forEach((column) => column.splice(0, extra));
    plot.setData(data);
  };
}

// By time, the mean of the requests of the last minute; `recent` keeps those from call to call.
function meansOfMinutes(recent, points) {
  const means = new Map();
  for (const [at, requests] of points) {
    recent.push(requests);
    if (recent.length > MEAN_S) recent.shift();
    means.set(at, recent.reduce((sum, each) => sum + each, 0) / recent.length);
  }
  return means;
}

function follow(path, onDelta, onState) {
  const source = new EventSource(path);
  source.onopen = () => onState(true);
  source.onerror = () => onState(false);  // the browser connects again by itself
  source.onmessage = (event) => onDelta(JSON.parse(event.data));
  addEventListener("pagehide", () => source.close());
}

// Path and body of the request that the form describes.
async function requestOf(form) {
  const body = await requestBody(form);
  const isV2 = (JSON.parse(body).inputs || []).some((each) => each.datatype);
  const { path, name } = form.dataset;
  return [`${path}/${isV2 ? `v2/models/${name}/infer` : `v1/models/${name}:predict`}`, body];
}

const EXAMPLES = { BYTES: "hello", BOOL: true };

function exampleTensor({ name, datatype, shape }) {
  const sizes = shape.map((size) => Math.max(size, 1));
  const value = datatype in EXAMPLES ? EXAMPLES[datatype] : 1;
  return { name, datatype, shape: sizes, data: Array(sizes.reduce((product, size) => product * size, 1)).fill(value) };
}

// A V2 body with inputs of the shapes in the model's metadata.
async function fillExample(form, answer) {
  const { path, name } = form.dataset;
  try {
    const response = await fetch(`${path}/v2/models/${name}`);
    const metadata = await response.json();
    if (!response.ok) throw new Error(metadata.error);
    if (!(metadata.inputs || []).length) throw new Error("the model's metadata name no inputs");
    form.elements.json.value = JSON.stringify({ inputs: metadata.inputs.map(exampleTensor) });
  } catch (error) {
    answer.textContent = `no example: ${error.message}`;
  }
}

async function requestBody(form) {
  const image = form.elements.image.files[0];
  if (form.elements.json.value.trim()) return form.elements.json.value;
  if (!image) return JSON.stringify({ instances: [form.elements.text.value] });
  const bytes = new Uint8Array(await image.arrayBuffer());
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return JSON.stringify({ instances: [{ image_bytes: { b64: btoa(binary) } }] });
}

function line(place, text, href) {
  const element = document.createElement(href ? "a" : "pre");
  element.textContent = text;
  if (href) element.href = href;
  place.append(element);
}

async function tryModel(form, answer) {
  answer.textContent = "sent ...";
  try {
    const [path, body] = await requestOf(form);
    const response = await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body });
    const text = await response.text();
    answer.textContent = "";
    line(answer, `${response.status} in ${response.headers.get("server-timing") || "-"}\n${text.slice(0, 20000)}`);
    const id = response.headers.get("x-request-id");
    if (id) line(answer, "how it was routed", `/console/requests/${encodeURIComponent(id)}`);
  } catch (error) {
    answer.textContent = `no answer: ${error}`;
  }
}

const form = document.getElementById("try");
if (form) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    tryModel(form, document.getElementById("answer"));
  });
  document.getElementById("example").addEventListener("click", () => fillExample(form, document.getElementById("answer")));
  const chart = document.getElementById("chart");
  const forecast = document.getElementById("forecast");
  const levels = document.getElementById("levels");
  let addPoints, addForecast, addLevels, recent;
  const begin = () => {
    recent = [];
    chart.textContent = forecast.textContent = levels.textContent = "";
    addPoints = drawChart(chart);
    addForecast = drawChart(forecast, FORECAST, BAND);
    addLevels = drawChart(levels, LEVELS);
  };
  begin();
  follow(chart.dataset.events, (delta) => {
    if (delta.points) addPoints(delta.points.map(inOrder));
    const means = meansOfMinutes(recent, delta.points || []);
    if (!delta.levels) return;
    addForecast(delta.levels.map(([at, , expected, median, high]) => [at, means.get(at), expected, median, high]));
    addLevels(delta.levels.map(([at, copies]) => [at, copies]));
  }, (isOpen) => { if (!isOpen) begin(); });
}
