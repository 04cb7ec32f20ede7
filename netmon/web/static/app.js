// SPDX-License-Identifier: Apache-2.0
// The page: who slows whom on top, the steps of a job, one timeline, what stands beside it, and once a second a look at
// how things stand.

import { list, strip } from "./answers.js";
import { StepChart } from "./chart.js";
import { json, readCatalogue } from "./data.js";
import { Figures } from "./figures.js";
import { clock, day, duration, fromIso, iso, local, zone } from "./format.js";
import { listen } from "./input.js";
import { searching } from "./search.js";
import { ratesByLane } from "./paint.js";
import * as panels from "./panels.js";
import { LABELS, Timeline } from "./timeline.js";
import { View } from "./view.js";

const EVERY_MS = 1000;
const MINUTE_NS = 60e9;
const SETTLES_MS = 300; // so long after the last move a place is one that Back comes back to
const node = (id) => document.getElementById(id);
// opened: what the sidebar is about: {step}, {incident: its key} or {span: host, begin and end}.
const page = { frames: [], verdicts: [], incidents: new Map(), reply: { incidents: [], all: 0, version: -1 }, state: null, count: -1, opened: {}, job: "" };
window.netmonPage = page; // for who looks at it with the browser's tools

function theme(name) {
  document.documentElement.dataset.theme = name;
  localStorage.setItem("netmon-theme", name);
  page.timeline?.repaint();
  page.chart?.draw();
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
  page.named = page.view.open(linked());
  page.view.jump();
  await look();
}

// What is shown at first: what the link names, else the last minute, or all that there is.
function first() {
  const { view, catalogue, state } = page;
  if (page.begun || !catalogue.lanes.length || !state) return;
  page.begun = true;
  if (!page.named) home();
  view.jump();
  moved(false);
}
function home() {
  const { view, catalogue, state, timeline } = page;
  view.follow = state.live;
  if (state.live) view.set(timeline.now - MINUTE_NS, MINUTE_NS);
  else view.fit(catalogue.begin, catalogue.end);
  view.keepUp(timeline.now);
}

// The lanes, at first and whenever there are others.
async function load() {
  const catalogue = readCatalogue(await json("/api/catalogue"));
  page.catalogue = catalogue;
  const known = page.view;
  page.view ??= new View(catalogue);
  if (known && known.origin !== catalogue.origin) {
    const shift = Number(known.origin - catalogue.origin);
    known.begin += shift;
    known.toBegin += shift;
    known.origin = catalogue.origin;
    page.chart.begin = undefined;
  }
  page.timeline ??= new Timeline(node("canvas"), node("scroller"), page.view, { onstale: again, onmoved: moved, onnews, onframe });
  page.chart ??= new StepChart(node("steps-plot"), node("brush"), page.view, { onbrush: brushed, onstep: (one) => openStep(one) });
  panels.legend(node("legend"), catalogue);
  panels.causes(node("steps-key"));
  page.timeline.show(catalogue);
  node("title").textContent = catalogue.title;
  node("synthetic").hidden = !catalogue.synthetic;
  node("leave").hidden = !catalogue.login;
  const names = catalogue.jobs.map((job) => job.name);
  node("steps-job").hidden = names.length < 2;
  node("steps-job").replaceChildren(...names.map((name) => panels.element("option", { value: name }, name)));
  chartOf(names.includes(page.job) ? page.job : (page.state?.jobs[0]?.name ?? names[0] ?? ""));
  node("steps").hidden = !names.length;
  page.count = -1;
  page.reply.version = -1;
  beyond();
}
let loading = null;
const again = () => (loading ??= load().catch(() => {}).finally(() => (loading = null)));

async function look() {
  clearTimeout(page.timer);
  try {
    const state = await json("/api/state");
    const began = !page.state;
    page.state = state;
    if (state.generation !== page.catalogue.generation) await again();
    const end = Number(BigInt(state.end_ns) - page.catalogue.origin);
    page.timeline.stands(end, state.live);
    first();
    if (state.verdicts !== page.count) await readVerdicts(state.verdicts);
    if (state.incidents !== page.reply.version) await readIncidents();
    if (began && state.jobs.length) chartOf(state.jobs[0].name);
    strip(node("answers"), state, page.incidents, openIncident);
    if (page.begun && !page.restored) restore(linked());
    if (!page.timeline.scrolls) page.view.keepUp(end);
    page.chart.update(page.catalogue, end, state.live, page.job, `${state.verdicts}/${state.reading}`);
    const reading = state.reading < 1 ? `, reading ${Math.round(100 * state.reading)} %` : "";
    shout(state.trouble || (state.live ? "live" : "stored") + reading, state.trouble ? "warn" : state.live ? "live" : "");
    beside();
    requested();
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

const since = (ns) => Number(BigInt(ns) - page.catalogue.origin);
async function readVerdicts(count) {
  const reply = await json("/api/verdicts");
  page.verdicts = reply.verdicts.map((one) => ({ ...one, at: since(one.end_ns), from: since(one.start_ns) }));
  page.count = count;
  page.timeline.verdicts = page.verdicts;
}
async function readIncidents() {
  const reply = await json("/api/incidents");
  for (const one of reply.incidents) Object.assign(one, { from: since(one.since_ns), to: since(one.until_ns) });
  page.reply = reply;
  page.incidents = new Map(reply.incidents.map((one) => [one.key, one]));
  page.chart.incidents = reply.incidents;
  page.chart.draw();
  node("tab-incidents").textContent = reply.all ? `Incidents (${reply.all.toLocaleString("en")})` : "Incidents";
  listed();
}
const listed = () => list(node("incidents"), page.reply, page.catalogue, page.opened.incident, page.verdicts, openIncident, openStep);

function chartOf(job) {
  page.job = job;
  node("steps-job").value = job;
  page.chart.update(page.catalogue, page.timeline.now, page.state?.live, job, page.state?.verdicts);
}
function brushed(begin, end) {
  page.view.show(begin, end, 1);
  page.timeline.redraw();
}

function beside() {
  const shown = tabShown();
  if (shown === "figures") (page.figures ??= new Figures(node("figures"))).show(page.catalogue, page.view);
  if (shown === "advice" && performance.now() - (page.advised ?? -1e9) > 15_000) {
    page.advised = performance.now();
    panels.advice(node("advice"));
  }
}
const tabShown = () => document.querySelector("#tabs [aria-selected=true]").id.slice(4);
function tab(name) {
  for (const button of document.querySelectorAll("#tabs [role=tab]")) {
    const own = button.id === `tab-${name}`;
    button.setAttribute("aria-selected", String(own));
    button.tabIndex = own ? 0 : -1;
    node(button.id.slice(4)).hidden = !own;
  }
  beside();
  settle();
}

// --- The link: the moment, the tab and what is open. Each place where one has stayed is one that Back comes back to.

const linked = () => new URLSearchParams(location.hash.replace(/^#/, ""));
function fragment() {
  const link = new URLSearchParams(page.view.moment);
  const { step, incident, span } = page.opened;
  const moment = (ns) => iso(page.catalogue.origin + BigInt(Math.round(ns)));
  if (tabShown() !== "incidents") link.set("tab", tabShown());
  if (step) for (const [name, value] of [["job", step.job], ["step", step.iteration], ["end", moment(step.at)]]) link.set(name, value);
  if (incident) link.set("incident", incident);
  if (span) for (const [name, value] of [["host", span.host], ["from", moment(span.begin)], ["to", moment(span.end)]]) link.set(name, value);
  return link.size ? `#${link}` : "";
}
const requested = () => page.timeline.processes.update(page.catalogue, page.timeline.openedHosts, page.view, page.state?.live);
function settle() {
  clearTimeout(page.settling);
  page.settling = setTimeout(commit, SETTLES_MS);
}
function commit() {
  page.settling = clearTimeout(page.settling);
  if (!page.restored) return;
  const now = fragment();
  if (now !== location.hash) history[page.view.follow || !page.stayed ? "replaceState" : "pushState"](null, "", now || location.pathname);
  page.stayed = true;
  requested();
  onnews();
  beside();
}
function restore(link) {
  page.restored = true;
  const [end, from, to] = ["end", "from", "to"].map((name) => fromIso(link.get(name) ?? ""));
  page.opened = {};
  page.timeline.measured = null;
  const incident = page.incidents.get(link.get("incident"));
  if (incident) point(incident);
  else page.timeline.pin([]);
  if (link.get("step") && end !== null) {
    const at = Number(end - page.catalogue.origin);
    const known = verdictOn(link.get("job"), Number(link.get("step")), at);
    show(known ?? { job: link.get("job") ?? "", iteration: Number(link.get("step")), from: at, at, duration_ns: 0 });
  } else if (incident) page.opened = { incident: incident.key };
  else if (from !== null && to !== null && to > from) {
    page.timeline.measured = [Number(from - page.catalogue.origin), Number(to - page.catalogue.origin)];
    carried(link.get("host") ?? "", ...page.timeline.measured);
  }
  else page.timeline.selected = null;
  const name = link.get("tab");
  tab(["selection", "figures", "advice"].includes(name) ? name : "incidents");
  listed();
}
function back() {
  const link = linked();
  if (!page.view.open(link)) home();
  restore(link);
  page.settling = clearTimeout(page.settling);
  page.timeline.redraw();
}
// A link may point to where nothing is, or nothing is any more.
function beyond() {
  const { view, catalogue, timeline } = page;
  const box = node("empty");
  const end = Math.max(timeline?.now ?? 0, catalogue.end);
  const away = catalogue.lanes.length && (view.begin >= end || view.begin + view.span <= catalogue.begin);
  box.hidden = catalogue.lanes.length > 0 && !away;
  const moment = (ns) => local(view.origin + BigInt(Math.round(ns)));
  const key = away ? `${Math.round(view.begin)}` : `${catalogue.lanes.length}`;
  if (box.hidden || box.dataset.key === key) return;
  box.dataset.key = key;
  box.replaceChildren(away
    ? panels.element("p", {}, `Nothing is known of ${moment(view.begin)}: what there is begins at ${moment(catalogue.begin)} and ends at ${moment(end)}. What is older may have been deleted.`)
    : "No host has sent anything yet: agents that connect appear here.",
    away ? panels.element("button", { onclick: () => (acts.fit(), timeline.redraw()) }, "Show what there is") : "");
}

function onframe(ms) {
  page.frames.push(ms);
  if (page.frames.length > 1000) page.frames.splice(0, 500);
}
function moved(byHand = true) {
  const { view } = page;
  page.chart.place();
  beyond();
  if (page.hovered) acts.hover(...page.hovered, false);
  if (byHand) settle();
  const now = performance.now();
  if (!byHand && now - (page.said ?? -Infinity) < 200) return;
  page.said = now;
  const at = view.origin + BigInt(Math.round(view.begin));
  const here = zone() === "UTC" ? "" : ` (${local(at)} here)`;
  node("range").textContent = `${day(at)} ${clock(at, view.span / 1000)} UTC${here} + ${duration(view.span)}`;
  node("follow").setAttribute("aria-pressed", String(view.follow));
}
// A tile has come, or another level is shown: how well its rates are known, and whether more is on its way.
function onnews() {
  const { tiles, level } = page.timeline;
  const some = [...tiles.known.values()].filter((tile) => tile.level === level).at(-1);
  const width = tiles.finest * 2 ** level;
  node("resolution").textContent = some && some.resolution_ns > width ? `rates known to ${duration(some.resolution_ns)}` : `a bin: ${duration(width)}`;
}

// --- What is open: a step with its parts, or an incident with its steps.

const verdictOn = (job, iteration, at) => page.verdicts.find((one) => one.job === job && one.iteration === iteration && Math.abs(one.at - at) < one.duration_ns);
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
  const [from, at] = [selected.bounds[0], selected.bounds[5]];
  const job = page.catalogue.lanes[selected.lane].job.name;
  show(verdictOn(job, selected.number, at) ?? { job, iteration: selected.number, from, at, duration_ns: at - from }, selected.lane);
  tab("selection");
}
// Selects a step and says what it is made of; the view stays.
function show(one, lane = page.timeline.byJob.get(one.job)) {
  const { timeline } = page;
  page.opened = { incident: page.opened.incident, step: { job: one.job, iteration: one.iteration, at: one.at } };
  timeline.measured = null;
  if (lane !== undefined) {
    timeline.reveal(lane);
    timeline.lane = lane;
    timeline.selected = { lane, number: one.iteration, bounds: [one.from, one.at, one.at, one.at, one.at, one.at] };
  }
  panels.step(node("selection"), page.catalogue, one, one.parts ? one : verdictOn(one.job, one.iteration, one.at));
  for (const button of document.querySelectorAll(".step")) button.setAttribute("aria-current", String(button.dataset.at === String(one.at)));
  node("said").textContent = one.sentence ?? `iteration ${one.iteration} of ${one.job}, ${duration(one.duration_ns)}`;
}
function openStep(one) {
  page.view.show(one.from, one.at, 0.35);
  if (page.job !== one.job) chartOf(one.job);
  show(one);
  tab("selection");
  page.timeline.redraw();
}
// An incident and its worst step: culprit and victim one below the other.
function openIncident(one) {
  page.opened = { incident: one.key };
  const worst = page.verdicts.find((verdict) => verdict.job === one.job && verdict.iteration === one.worst && verdict.at > one.from && verdict.from < one.to);
  page.view.show(one.from, one.to, 0.8);
  if (page.job !== one.job) chartOf(one.job);
  point(one);
  if (worst) show(worst);
  tab("incidents");
  listed();
  page.timeline.redraw();
}
function point(one) {
  const { lanes } = page.catalogue;
  const { timeline } = page;
  const job = timeline.byJob.get(one.job);
  const of = (host) => (lanes.find((lane) => lane.kind === "host" && lane.host === host && lane.job?.name === one.job) ?? lanes.find((lane) => lane.kind === "host" && lane.host === host))?.at;
  const [from, to] = [of(one.sender), of(one.receiver)];
  const rank = lanes.find((lane) => lane.kind === "rank" && lane.rank === one.rank && lane.job.name === one.job)?.at;
  const shown = [...new Set([job, rank, to, from].filter((at) => at !== undefined))];
  timeline.pin(shown, from !== undefined && to !== undefined && from !== to ? { from, to, begin: one.from, end: one.to } : null);
}
// What was carried in a time; host: empty for all.
function carried(host, begin, end) {
  page.opened = { span: { host, begin, end } };
  page.timeline.selected = null;
  panels.span(node("selection"), page.catalogue, host ? [host] : [], begin, end);
  tab("selection");
}
function verdict(step) {
  const middle = page.view.toBegin + page.view.toSpan / 2;
  const found = page.verdicts.map((one) => [(one.from + one.at) / 2 - middle, one]).filter(([away]) => away * step > page.view.toSpan * 0.01);
  if (found.length) openStep(found.reduce((a, b) => (Math.abs(a[0]) < Math.abs(b[0]) ? a : b))[1]);
}

const acts = {
  moved,
  explain,
  verdict,
  fit: () => {
    page.view.follow = false;
    page.view.fit(page.catalogue.begin, page.timeline.now || page.catalogue.end);
    settle();
  },
  follow: () => {
    page.view.follow = !page.view.follow;
    page.view.keepUp(page.timeline.now);
    moved();
  },
  link: async () => {
    page.view.follow = false;
    commit();
    await navigator.clipboard?.writeText(location.href).catch(() => {});
    node("said").textContent = "the link to this moment is copied";
  },
  theme: () => {
    theme(dark() ? "light" : "dark");
    page.figures?.again();
    beside();
  },
  help: () => node("keyboard").showModal(),
  search: () => node("find").focus(),
  leave: () => {
    page.opened = {};
    page.timeline.selected = page.timeline.measured = null;
    page.timeline.pin([]);
    listed();
    settle();
  },
  slowest: () => page.verdicts.length && openStep(page.verdicts.reduce((a, b) => (a.excess_ns > b.excess_ns ? a : b))),
  toggle: () => (page.timeline.toggle(page.timeline.lane), requested()),
  lane: (step) => {
    const { rows } = page.timeline;
    if (!rows.length) return;
    const at = rows.indexOf(page.timeline.lane);
    const lane = (page.timeline.lane = rows[Math.min(Math.max(at + step, 0), rows.length - 1)]);
    page.timeline.reveal(lane);
    const one = page.timeline.lanes[lane];
    node("said").textContent = one.kind === "job" ? `job ${one.job.name}` : one.kind === "rank" ? `rank ${one.rank} of ${one.job.name}, ${one.host}` : `bytes of ${one.process ? `${one.process}, ` : ""}${one.host}`;
  },
  step: (way) => {
    const { timeline, view } = page;
    const chosen = timeline.lanes[timeline.lane];
    const lane = chosen?.kind === "job" || chosen?.kind === "rank" ? chosen.at : (timeline.byJob.get(page.job) ?? 0);
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
    const flag = timeline.flags?.find((one) => x >= one.x - 1 && x <= one.x + 16 && y >= one.y && y <= one.y + 14);
    if (flag) return openStep(flag.verdict);
    const at = timeline.laneAt(y);
    if (at < 0) return;
    timeline.lane = at;
    const lane = timeline.lanes[at];
    if (x < LABELS && lane.kind !== "process") timeline.toggle(at), requested();
    else if (lane.kind === "host" || lane.kind === "process") {
      acts.carried(lane);
    } else {
      const time = timeline.time(x);
      const [slice] = timeline.tiles.slices(timeline.level, at, time, time + 1);
      if (slice) select(slice), explain();
    }
    timeline.redraw();
  },
  carried: (lane) => {
    const { view, catalogue, timeline } = page;
    const [begin, end] = [Math.max(view.begin, catalogue.begin), Math.min(view.begin + view.span, timeline.now)];
    carried(lane.host, ...(begin < end ? [begin, end] : [view.begin, view.begin + view.span]));
  },
  hover: (x, y, redraw = true) => {
    const { timeline, catalogue } = page;
    page.hovered = x > LABELS ? [x, y] : null;
    timeline.hover = x > LABELS ? x : null;
    const at = x > LABELS ? timeline.laneAt(y) : -1;
    panels.tip(node("tip"), at < 0 ? null : under(timeline.lanes[at], timeline.time(x)), x, y, timeline.width);
    if (redraw) timeline.redraw();
  },
  measure: (from, to, y, done) => {
    const [begin, end] = [Math.min(from, to), Math.max(from, to)];
    page.timeline.measured = [begin, end];
    page.timeline.redraw();
    if (done) carried(page.timeline.lanes[page.timeline.laneAt(y)]?.host ?? "", begin, end);
  },
};

function under(lane, time) {
  const { timeline, catalogue } = page;
  const { tiles, level } = timeline;
  const when = clock(catalogue.origin + BigInt(Math.round(time)), page.view.span / 1000);
  if (lane.kind === "process") return [lane.process, `${lane.host} · ${when}`];
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

// What was found is shown: its lane, or its step.
function go(found) {
  const { catalogue, timeline } = page;
  if (found.iteration !== undefined) return openStep({ job: found.job, iteration: found.iteration, from: since(found.start_ns), at: since(found.end_ns), duration_ns: since(found.end_ns) - since(found.start_ns) });
  const lane = catalogue.lanes.find((one) => (found.host ? one.kind === "host" && one.host === found.host : one.kind === "job" && one.job.name === found.job));
  if (!lane) return;
  timeline.lane = lane.at;
  timeline.open(lane.at);
  if (found.host) acts.carried(lane);
  else chartOf(found.job);
  timeline.redraw();
}

function wire() {
  searching(node("search"), node("find"), node("found"), () => page.catalogue, go);
  listen(page.timeline, acts);
  const press = (id, act) => node(id).addEventListener("click", () => (act(), page.timeline.redraw()));
  press("in", () => page.view.zoom(0.6));
  press("out", () => page.view.zoom(1 / 0.6));
  for (const name of ["fit", "follow", "link", "theme", "help"]) press(name, acts[name]);
  node("steps-job").addEventListener("change", (event) => chartOf(event.target.value));
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
  addEventListener("popstate", back);
  document.addEventListener("visibilitychange", () => document.hidden || look()); // it has slept
  setInterval(() => (node("loading").hidden = !page.timeline.tiles.late), 250);
  moved(false);
}

page.moment = () => iso(page.view.origin + BigInt(Math.round(page.view.begin)));
begin();
