// Reads /metrics every second and draws it; everything comes from this server.

import { Chart } from "./chart.js";
import { Chat } from "./chat.js";
import { labels, parse, quantile, rate, sum } from "./metrics.js";

const INTERVAL = 1000;
const WINDOW = 5;
const number = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(value ? 2 : 0));
const count = (value) => value.toFixed(0);
const seconds = (value) => (value < 1 ? `${(value * 1e3).toFixed(0)} ms` : `${value.toFixed(2)} s`);
const share = (value) => `${(100 * value).toFixed(0)} %`;
const bytes = (value) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; value >= 1024 && at < units.length - 1; at++) value /= 1024;
  return `${value.toFixed(value < 10 && at ? 1 : 0)} ${units[at]}`;
};

const charts = document.getElementById("charts");
const drawn = {
  tokens: new Chart(charts, "Tokens/s out", ["out"], number),
  prefill: new Chart(charts, "Tokens/s in", ["in"], number),
  requests: new Chart(charts, "Running / queued", ["running", "queued"], count),
  ttft: new Chart(charts, "TTFT p50 / p99", ["p50", "p99"], seconds),
  itl: new Chart(charts, "ITL p50 / p99", ["p50", "p99"], seconds),
  step: new Chart(charts, "Step p50", ["p50"], seconds),
  pages: new Chart(charts, "Pages / unfilled", ["used", "unfilled"], share, 1),
  cache: new Chart(charts, "Cache hits", ["hits"], share, 1),
  busy: new Chart(charts, "Busy", ["busy"], share, 1),
  memory: new Chart(charts, "Memory", ["resident"], bytes),
};

let model = "model";
const readings = [];
new Chat(() => model);

function update(series) {
  const now = performance.now() / 1e3;
  readings.push([now, series]);
  while (readings.length > WINDOW + 1) readings.shift();
  const [then, before] = readings[0];
  const span = Math.max(now - then, 1e-3);
  const of = (metric) => sum(series, metric);
  const per = (metric) => rate(before, series, metric, span);
  const middle = (metric) => [0.5, 0.99].map((p) => quantile(before, series, metric, p));
  drawn.tokens.push(per("sglk_generated_tokens_total"));
  drawn.prefill.push(per("sglk_prompt_tokens_total"));
  drawn.requests.push(of("sglk_running"), of("sglk_queued"));
  drawn.ttft.push(...middle("sglk_ttft_seconds"));
  drawn.itl.push(...middle("sglk_itl_seconds"));
  drawn.step.push(middle("sglk_step_seconds")[0]);
  drawn.pages.push(of("sglk_page_utilisation_ratio"), of("sglk_page_fragmentation_ratio"));
  const asked = sum(series, "sglk_prompt_tokens_total") - sum(before, "sglk_prompt_tokens_total");
  const found = sum(series, "sglk_cached_tokens_total") - sum(before, "sglk_cached_tokens_total");
  drawn.cache.push(asked > 0 ? found / asked : null);
  drawn.busy.push(Math.min(1, per("sglk_busy_seconds_total")));
  drawn.memory.push(series.get('sglk_memory_bytes{kind="resident"}') ?? null);
  facts(series);
}

function facts(series) {
  const shown = [];
  const phases = [];
  const limits = {};
  for (const [name, value] of series) {
    if (name.startsWith("sglk_info{")) {
      const info = labels(name);
      model = info.model ?? model;
      document.getElementById("model").textContent =
        [info.model, info.architecture, info.quant].filter(Boolean).join(" · ");
      for (const key of Object.keys(info)) if (info[key]) shown.push([key, info[key]]);
    } else if (name.startsWith("sglk_limit{")) limits[labels(name).limit] = value;
    else if (name.startsWith("sglk_startup_phase_seconds{")) phases.push([labels(name).phase, value]);
  }
  const kv = ["free", "cached", "held"].reduce((all, state) => all + (series.get(`sglk_kv_bytes{state="${state}"}`) ?? 0), 0);
  shown.push(["weights", bytes(sum(series, "sglk_weight_bytes"))], ["cache", `${bytes(kv)}, ${limits.pages ?? "?"} pages of ${limits.page_size ?? "?"} tokens`]);
  shown.push(["limits", `${limits.max_running ?? "?"} running, ${limits.max_queued ?? "?"} queued, context ${limits.max_context ?? "?"}`]);
  fill("facts", shown.flatMap(([key, value]) => [element("dt", key), element("dd", value)]));
  const total = phases.reduce((all, [, value]) => all + value, 0);
  fill("phases", [...phases, ["ready after", total]].map(([name, value]) => phase(name, value, total)));
}

function phase(name, value, total) {
  const row = element("div", "");
  row.className = "phase";
  const meter = element("meter", "");
  meter.max = total || 1;
  meter.value = value;
  row.append(element("span", name), meter, element("span", seconds(value)));
  return row;
}

function element(tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}

function fill(id, children) {
  const parent = document.getElementById(id);
  const text = children.map((child) => child.textContent).join("\n");
  if (parent.dataset.shown === text) return;
  parent.dataset.shown = text;
  parent.replaceChildren(...children);
}

async function state() {
  const reply = await fetch("health/ready");
  const ready = await reply.json();
  if (!reply.ok) return ["down", ready.detail];
  const degraded = await (await fetch("health/degraded")).json();
  return degraded.degraded ? ["degraded", degraded.reasons.map((r) => r.detail).join("; ")] : ["ready", "ready"];
}

async function tick() {
  const shown = document.getElementById("state");
  try {
    update(parse(await (await fetch("metrics")).text()));
    [shown.dataset.state, shown.textContent] = await state();
  } catch (error) {
    [shown.dataset.state, shown.textContent] = ["down", "no answer"];
  }
  document.documentElement.dataset.ticks = String(Number(document.documentElement.dataset.ticks ?? 0) + 1);
  setTimeout(tick, INTERVAL);
}

tick();
