// SPDX-License-Identifier: Apache-2.0
// What stands beside the timeline. Names come from other machines: they are only ever text.

import { json } from "./data.js";
import { bytes, clock, duration, rate } from "./format.js";

const DIRECTIONS = ["rx", "tx"];

// An element with attributes and children; a text is a text.
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes))
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function table(heads, rows, left = 1) {
  const of = (cell, at, tag) => element(tag, at < left ? {} : { class: "n" }, cell);
  return element("table", {},
    element("thead", {}, element("tr", {}, ...heads.map((head, at) => of(head, at, "th")))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell, at) => of(cell, at, "td"))))));
}

export function legend(node, catalogue) {
  const swatch = (colour, text) => {
    const box = element("i");
    box.style.background = colour;
    return element("span", { class: "key" }, box, text);
  };
  const group = (name, ...keys) => element("span", { class: "group" }, element("b", {}, name), ...keys);
  node.replaceChildren(
    group("iteration", ...catalogue.phases.map((phase, at) => swatch(`var(--phase-${at})`, phase))),
    group("bytes", ...catalogue.classes.map((class_, at) => swatch(catalogue.colours[at], class_))),
    element("span", { class: "tail", id: "resolution" }));
}

export function verdicts(node, catalogue, found, open) {
  const unclear = catalogue.not_understood.map((line) => element("p", { class: "note" }, line));
  if (!found.length) {
    node.replaceChildren(...unclear, element("p", { class: "note" }, "No iteration has stood out so far. One does that takes 1.2 × its job's usual time."));
    return;
  }
  node.replaceChildren(...unclear, ...found.toReversed().slice(0, 300).map((one) =>
    element("button", { class: `verdict${one.network ? " network" : ""}`, "data-at": one.at, onclick: () => open(one) },
      one.sentence, element("small", {}, `${clock(catalogue.origin + BigInt(Math.round(one.at)), 1e6)} · ${one.cause.replaceAll("_", " ")} · confidence ${one.confidence.toFixed(2)}`))));
}

// One iteration of one lane, with what a look at its traffic tells.
export async function selection(node, catalogue, slice, lane, verdict) {
  const [start, idle, everybody, held, done, end] = slice.bounds;
  const parts = slice.known
    ? [["computing", idle - start + end - done], ["waiting for a rank", everybody - idle], ["transfer", held - everybody], ["held up", done - held]]
    : [["not known", end - start]];
  const whose = lane.kind === "job" ? `${lane.job.name}, its slowest rank` : `${lane.job.name}, rank ${lane.rank} on ${lane.host}`;
  const more = element("div", {}, element("p", { class: "note" }, "looking at what its hosts carried …"));
  node.replaceChildren(
    element("h2", {}, `Iteration ${slice.number}`),
    element("p", { class: "note" }, `${whose} · begins ${clock(catalogue.origin + BigInt(Math.round(start)), 1)}`),
    table(["part", "time", ""], [...parts, ["in all", end - start]].map(([name, ns]) =>
      [name, duration(ns), `${Math.round((100 * ns) / (end - start))} %`])),
    verdict ? element("pre", {}, [verdict.sentence, ...verdict.arithmetic].join("\n")) : "",
    more);
  if (!catalogue.full) return more.replaceChildren();
  try {
    const told = await json(`/api/explain?job=${encodeURIComponent(lane.job.job)}&iteration=${slice.number}`);
    more.replaceChildren(
      verdict ? "" : element("pre", {}, [told.sentence, ...told.arithmetic].join("\n")),
      told.path ? element("p", {}, told.path) : "",
      told.ranks?.length ? table(["", "host", "took", "computed", "waited", "transfer", "held up"], told.ranks.map((one) =>
        [`${one.rank}`, one.host, duration(one.duration_ns), ...["computed_ns", "waited_ns", "transfer_ns", "held_ns"].map((name) =>
          one.known ? duration(one[name]) : "?")]), 2) : "");
  } catch (error) {
    more.replaceChildren(element("p", { class: "note" }, error.message));
  }
}

// The largest flows of a host in the time that is shown.
export async function flows(node, catalogue, lane, begin, end) {
  const span = `${clock(catalogue.origin + BigInt(Math.round(begin)), 1e6)} + ${duration(end - begin)}`;
  node.replaceChildren(element("h2", {}, lane.host), element("p", { class: "note" }, `${span} · the largest flows …`));
  if (!catalogue.full) return node.append(element("p", {}, "This viewer sees jobs, classes and rates only."));
  try {
    const at = (ns) => catalogue.origin + BigInt(Math.round(ns));
    const told = await json(`/api/flows?host=${encodeURIComponent(lane.host)}&begin_ns=${at(begin)}&end_ns=${at(end)}`);
    const who = (one) => (one.job ? `${one.job}/${one.rank}` : one.process || one.class_source || "");
    node.replaceChildren(element("h2", {}, lane.host), element("p", { class: "note" }, `${span} · the largest flows`),
      told.flows.length
        ? table(["flow", "class", ...Object.values(told.counts), "rate"], told.flows.map((one) => [
            element("span", {}, `${who(one)} ${one.direction}${one.user ? `, user ${one.user}` : ""}`, element("br"), element("small", { class: "note" }, `${end_(one.src, one.src_port)} → ${end_(one.dst, one.dst_port)}`)),
            one.class, ...Object.keys(told.counts).map((name) => count(name, one[name])), rate((8e9 * one.wire_bytes) / (end - begin))]), 2)
        : element("p", {}, "It carried nothing in this time."));
  } catch (error) {
    node.append(element("p", { class: "note" }, error.message));
  }
}
const count = (name, value) => (value === undefined ? "?" : name.endsWith("_bytes") ? bytes(value) : value.toLocaleString());
const end_ = (address, port) => (port ? (String(address).includes(":") ? `[${address}]:${port}` : `${address}:${port}`) : address ?? "?");

export async function advice(node) {
  try {
    const told = await json("/api/advice");
    const share = (one) => `${Math.round(100 * one)} %`;
    node.replaceChildren(
      element("h2", {}, "What could be done"),
      element("ul", {}, ...told.advice.map((line) => element("li", {}, line))),
      told.jobs.length ? element("h2", { class: "sub" }, "Jobs") : "",
      told.jobs.length ? table(["job", "takes", "alone", "transfers"], told.jobs.map((one) => [one.job, duration(one.duration_ns), duration(one.alone_ns), share(one.busy)])) : "",
      told.pairs.length ? element("h2", { class: "sub" }, "Pairs of ranks") : "",
      told.pairs.length ? table(["pair", "bytes", "pace while it sends"], told.pairs.map((one) => [`${one.source} → ${one.target}${one.slow ? " (slow)" : ""}`, bytes(one.bytes), rate(one.pace_bps)])) : "");
  } catch (error) {
    node.replaceChildren(element("p", { class: "note" }, error.message));
  }
}

// What is under the mouse, as lines of text.
export function tip(node, lines, x, y, width) {
  node.hidden = !lines;
  if (!lines) return;
  node.replaceChildren(element("b", {}, lines[0]), ...lines.slice(1).map((line) => element("div", {}, line)));
  node.style.left = `${Math.min(x + 14, width - 300)}px`;
  node.style.top = `${y + 16}px`;
}

export function rateLines(catalogue, lane, series, bin) {
  const lines = [];
  for (const way of [1, 0])
    catalogue.classes.forEach((class_, at) => {
      const value = series?.[way * catalogue.classes.length + at]?.[bin];
      if (value) lines.push(`${DIRECTIONS[way]} ${class_}: ${rate(value)}${lane.capacity ? `, ${Math.round((100 * value) / lane.capacity)} %` : ""}`);
    });
  return lines.length ? lines : ["silent"];
}
