// SPDX-License-Identifier: Apache-2.0
// The page: one timeline, what stands beside it, and once a second a look at how things stand.

import { json, readCatalogue } from "./data.js";
import { Figures } from "./figures.js";
import { clock, day, duration, iso } from "./format.js";
import { listen } from "./input.js";
import { ratesByLane } from "./paint.js";
import * as panels from "./panels.js";
import { LABELS, Timeline } from "./timeline.js";
import { View } from "./view.js";

const EVERY_MS = 1000;
const MINUTE_NS = 60e9;
const node = (id) => document.getElementById(id);
const page = { frames: [], verdicts: [], state: null, told: -1 };
window.netmonPage = page; // for who looks at it with the browser's tools

function theme(name) {
  document.documentElement.dataset.theme = name;
  localStorage.setItem("netmon-theme", name);
  page.timeline?.repaint();
}
const dark = () => document.documentElement.dataset.theme === "dark";

async function begin() {
  theme(localStorage.getItem("netmon-theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  for (;;)
    try {
      await load();
      break;
    } catch (error) {
      shout(error.message);
      await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
    }
  wire();
  page.named = page.view.open(location.hash);
  page.view.jump();
  await look();
}

// What is shown at first: what the link names, else the last minute, or all that there is.
function first() {
  const { view, catalogue, state, timeline } = page;
  if (page.named || !catalogue.lanes.length || !state) return;
  page.named = true;
  view.follow = state.live;
  if (state.live) view.set(timeline.now - MINUTE_NS, MINUTE_NS);
  else view.fit(catalogue.begin, catalogue.end);
  view.keepUp(timeline.now);
  view.jump();
  moved();
}

// The lanes, at first and whenever there are others.
async function load() {
  const catalogue = readCatalogue(await json("/api/catalogue"));
  page.catalogue = catalogue;
  const known = page.view;
  page.view ??= new View(catalogue);
  if (known && known.origin !== catalogue.origin) {
    known.begin = known.toBegin += Number(known.origin - catalogue.origin);
    known.origin = catalogue.origin;
  }
  page.timeline ??= new Timeline(node("canvas"), node("scroller"), page.view, { onstale: again, onmoved: moved, onnews, onframe });
  panels.legend(node("legend"), catalogue);
  page.timeline.show(catalogue);
  node("title").textContent = catalogue.title;
  node("synthetic").hidden = !catalogue.synthetic;
  node("leave").hidden = !catalogue.login;
  node("empty").hidden = catalogue.lanes.length > 0;
  node("empty").textContent = "No host has told anything yet: agents that connect appear here.";
  page.told = -1;
}
let loading = null;
const again = () => (loading ??= load().catch(() => {}).finally(() => (loading = null)));

async function look() {
  clearTimeout(page.timer);
  try {
    const state = await json("/api/state");
    page.state = state;
    page.seenAt = performance.now();
    if (state.generation !== page.catalogue.generation) await again();
    const end = Number(BigInt(state.end_ns) - page.catalogue.origin);
    Object.assign(page.timeline, { now: end, live: state.live });
    first();
    page.view.keepUp(end);
    if (page.told !== state.verdicts) await readVerdicts(state.verdicts);
    const reading = state.reading < 1 ? `, reading ${Math.round(100 * state.reading)} %` : "";
    shout(state.trouble || (state.live ? "live" : "stored") + reading, state.trouble ? "warn" : state.live ? "live" : "");
    beside();
  } catch {
    shout("the page's server does not answer; trying again", "warn");
  }
  page.timeline.redraw();
  page.timer = setTimeout(look, EVERY_MS);
}
function shout(text, kind = "warn") {
  const pill = node("state");
  if (pill.textContent !== text) pill.textContent = text;
  pill.className = `pill ${kind}`;
}

async function readVerdicts(count) {
  const told = await json("/api/verdicts");
  page.verdicts = told.verdicts.map((one) => ({ ...one, at: Number(BigInt(one.end_ns) - page.catalogue.origin), from: Number(BigInt(one.start_ns) - page.catalogue.origin) }));
  page.told = count;
  page.timeline.verdicts = page.verdicts;
  node("tab-verdicts").textContent = page.verdicts.length ? `Verdicts (${page.verdicts.length})` : "Verdicts";
  panels.verdicts(node("verdicts"), page.catalogue, page.verdicts, openVerdict);
}

function beside() {
  const shown = document.querySelector("#tabs [aria-selected=true]").id.slice(4);
  if (shown === "figures") (page.figures ??= new Figures(node("figures"))).show(page.catalogue, page.view);
  if (shown === "advice" && performance.now() - (page.advised ?? -1e9) > 15_000) {
    page.advised = performance.now();
    panels.advice(node("advice"));
  }
}
function tab(name) {
  for (const button of document.querySelectorAll("#tabs [role=tab]")) {
    const own = button.id === `tab-${name}`;
    button.setAttribute("aria-selected", String(own));
    button.tabIndex = own ? 0 : -1;
    node(button.id.slice(4)).hidden = !own;
  }
  beside();
}

function onframe(ms) {
  page.frames.push(ms);
  if (page.frames.length > 1000) page.frames.splice(0, 500);
}
function moved() {
  const { view } = page;
  const at = view.origin + BigInt(Math.round(view.begin));
  node("range").textContent = `${day(at)} ${clock(at, view.span / 1000)} + ${duration(view.span)}`;
  node("follow").setAttribute("aria-pressed", String(view.follow));
  clearTimeout(page.linking);
  page.linking = setTimeout(() => {
    history.replaceState(null, "", view.follow ? location.pathname : view.fragment);
    onnews();
    beside();
  }, 250);
}
// A tile has come, or another level is shown: how well its rates are known.
function onnews() {
  const { tiles, level } = page.timeline;
  const some = [...tiles.known.values()].filter((tile) => tile.level === level).at(-1);
  const width = tiles.finest * 2 ** level;
  node("resolution").textContent = some && some.resolution_ns > width ? `rates known to ${duration(some.resolution_ns)}` : `a bin: ${duration(width)}`;
}

function select(slice) {
  const { timeline, catalogue } = page;
  const lane = catalogue.lanes[slice.lane];
  timeline.selected = slice;
  timeline.lane = slice.lane;
  timeline.reveal(slice.lane);
  node("said").textContent = `iteration ${slice.number}, ${lane.job.name}${lane.kind === "rank" ? `, rank ${lane.rank}` : ""}, ${duration(slice.bounds[5] - slice.bounds[0])}`;
}
function explain() {
  const { selected } = page.timeline;
  if (!selected) return;
  const lane = page.catalogue.lanes[selected.lane];
  const verdict = page.verdicts.find((one) => one.job === lane.job.name && one.iteration === selected.number && Math.abs(one.at - selected.bounds[5]) < one.duration_ns);
  tab("selection");
  panels.selection(node("selection"), page.catalogue, selected, lane, verdict);
}
function openVerdict(one) {
  const { view, timeline } = page;
  view.show(one.from, one.at, 0.35);
  const lane = timeline.byJob.get(one.job);
  if (lane !== undefined) {
    timeline.reveal(lane);
    timeline.lane = lane;
    const from = one.from;
    timeline.selected = { lane, number: one.iteration, known: false, bounds: [from, one.at, one.at, one.at, one.at, one.at] };
  }
  for (const button of document.querySelectorAll(".verdict")) button.setAttribute("aria-current", String(button.dataset.at === String(one.at)));
  node("said").textContent = one.sentence;
  timeline.redraw();
}
function verdict(step) {
  const middle = page.view.toBegin + page.view.toSpan / 2;
  const found = page.verdicts.map((one) => [(one.from + one.at) / 2 - middle, one]).filter(([away]) => away * step > page.view.toSpan * 0.01);
  if (found.length) openVerdict(found.reduce((a, b) => (Math.abs(a[0]) < Math.abs(b[0]) ? a : b))[1]);
}

const acts = {
  moved,
  explain,
  verdict,
  fit: () => {
    page.view.follow = false;
    page.view.fit(page.catalogue.begin, page.timeline.now || page.catalogue.end);
  },
  follow: () => {
    page.view.follow = !page.view.follow;
    page.view.keepUp(page.timeline.now);
    moved();
  },
  link: async () => {
    page.view.follow = false;
    history.replaceState(null, "", page.view.fragment);
    await navigator.clipboard?.writeText(location.href).catch(() => {});
    node("said").textContent = "the link to this moment is copied";
  },
  theme: () => {
    theme(dark() ? "light" : "dark");
    page.figures?.again();
    beside();
  },
  help: () => node("keyboard").showModal(),
  slowest: () => page.verdicts.length && openVerdict(page.verdicts.reduce((a, b) => (a.excess_ns > b.excess_ns ? a : b))),
  lane: (step) => {
    const count = page.catalogue.lanes.length;
    if (!count) return;
    const lane = (page.timeline.lane = Math.min(Math.max(page.timeline.lane + step, 0), count - 1));
    page.timeline.reveal(lane);
    const one = page.catalogue.lanes[lane];
    node("said").textContent = one.kind === "job" ? `job ${one.job.name}` : one.kind === "rank" ? `rank ${one.rank} of ${one.job.name}, ${one.host}` : `bytes of ${one.host}`;
  },
  step: (way) => {
    const { timeline, view } = page;
    const lane = page.catalogue.lanes[timeline.lane]?.kind === "host" || timeline.lane < 0 ? 0 : timeline.lane;
    const found = timeline.tiles.slices(timeline.level, lane, view.begin - view.span, view.begin + 2 * view.span);
    const begun = timeline.selected?.lane === lane;
    const here = begun ? timeline.selected.bounds[0] : view.begin + view.span / 2;
    let next = way > 0 ? found.find((one) => one.bounds[0] > here + 1) : found.findLast((one) => one.bounds[0] < here - 1);
    if (!next && !begun) next = way > 0 ? found.at(-1) : found[0]; // a lane whose job ran before, or after, the middle
    if (!next) return view.pan(way * 0.5);
    select(next);
    if (next.bounds[0] < view.toBegin || next.bounds[5] > view.toBegin + view.toSpan) view.set((next.bounds[0] + next.bounds[5] - view.toSpan) / 2, view.toSpan);
    view.follow = false;
  },
  click: (x, y) => {
    const { timeline, view } = page;
    const at = timeline.laneAt(y);
    if (at < 0) return;
    timeline.lane = at;
    const lane = page.catalogue.lanes[at];
    if (lane.kind === "host") {
      tab("selection");
      panels.flows(node("selection"), page.catalogue, lane, view.begin, view.begin + view.span);
    } else {
      const time = timeline.time(x);
      const [slice] = x > LABELS ? timeline.tiles.slices(timeline.level, at, time, time + 1) : [];
      if (slice) select(slice), explain();
    }
    timeline.redraw();
  },
  hover: (x, y) => {
    const { timeline, catalogue } = page;
    timeline.hover = x > LABELS ? x : null;
    const at = x > LABELS ? timeline.laneAt(y) : -1;
    panels.tip(node("tip"), at < 0 ? null : under(catalogue.lanes[at], timeline.time(x)), x, y, timeline.width);
    timeline.redraw();
  },
};

function under(lane, time) {
  const { timeline, catalogue } = page;
  const { tiles, level } = timeline;
  const when = clock(catalogue.origin + BigInt(Math.round(time)), page.view.span / 1000);
  if (lane.kind === "host") {
    const tile = tiles.get(level, Math.floor(time / tiles.span(level)), Math.floor(lane.at / tiles.block));
    if (!tile) return null;
    const bin = Math.floor((time / tiles.span(level) - Math.floor(time / tiles.span(level))) * tiles.bins);
    return [`${lane.host} · ${when}`, ...panels.rateLines(catalogue, lane, ratesByLane(tile, tiles.bins).get(lane.at % tiles.block), bin)];
  }
  const [slice] = tiles.slices(level, lane.at, time, time + 1);
  if (!slice) return null;
  const [start, idle, everybody, held, done, end] = slice.bounds;
  const parts = slice.known ? [["computing", idle - start + end - done], ["waiting", everybody - idle], ["transfer", held - everybody], ["held up", done - held]] : [];
  const whose = lane.kind === "job" ? "slowest rank" : `rank ${lane.rank}, ${lane.host}`;
  return [`iteration ${slice.number} · ${duration(end - start)}`, `${lane.job.name}, ${whose} · ${when}`, ...parts.filter(([, ns]) => ns > 0).map(([name, ns]) => `${name} ${duration(ns)}`)];
}

function wire() {
  listen(page.timeline, acts);
  const press = (id, act) => node(id).addEventListener("click", () => (act(), page.timeline.redraw()));
  press("in", () => page.view.zoom(0.6));
  press("out", () => page.view.zoom(1 / 0.6));
  for (const name of ["fit", "follow", "link", "theme", "help"]) press(name, acts[name]);
  const tabs = [...document.querySelectorAll("#tabs [role=tab]")];
  for (const [at, button] of tabs.entries()) {
    button.addEventListener("click", () => tab(button.id.slice(4)));
    button.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = tabs[(at + step + tabs.length) % tabs.length];
      tab(next.id.slice(4));
      next.focus();
    });
  }
  addEventListener("hashchange", () => (page.view.open(location.hash), page.timeline.redraw()));
  document.addEventListener("visibilitychange", () => document.hidden || look()); // it has slept
  moved();
}

page.moment = () => iso(page.view.origin + BigInt(Math.round(page.view.begin)));
begin();
