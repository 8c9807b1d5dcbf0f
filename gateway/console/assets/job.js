// Forms that start a command of the gateway: progress while it runs, its result when it ends.
"use strict";

const INTERVAL_MS = 500;
const form = document.querySelector("form.job");
const text = document.getElementById("job");
const bar = document.getElementById("job-progress");
const cancel = form.querySelector(".cancel");
const jobPath = "/console/jobs/" + form.dataset.title;

function show(progress) {
  bar.hidden = cancel.hidden = !progress.running;
  bar.max = progress.steps;
  bar.value = progress.done;
  text.textContent = `${progress.step}: ${progress.seconds} s, step ${progress.done + 1} of ${progress.steps}`;
}

async function send(method, path) {
  const response = await fetch(path, { method });
  const document_ = await response.json();
  if (!response.ok) throw new Error(document_.error);
  return document_;
}

async function follow() {
  try {
    const progress = await send("GET", jobPath);
    if (!progress.running) { location.reload(); return; }
    show(progress);
  } catch (error) {
    text.textContent = `no answer: ${error.message}; trying again`;
  }
  setTimeout(follow, INTERVAL_MS);
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    show(await send("POST", form.dataset.path + "?" + new URLSearchParams(new FormData(form))));
    setTimeout(follow, INTERVAL_MS);
  } catch (error) {
    text.textContent = error.message;
  }
});
cancel.addEventListener("click", () => send("DELETE", jobPath).catch((error) => { text.textContent = error.message; }));
if (text.dataset.running) follow();
