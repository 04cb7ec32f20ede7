// SPDX-License-Identifier: Apache-2.0
// What stands beside the timeline. Names come from other machines: they are only ever text.

import { json } from "./data.js";
import { both, bytes, clock, duration, rate } from "./format.js";

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

function swatch(colour, text) {
  const box = element("i");
  box.style.background = colour;
  return element("span", { class: "key" }, box, text);
}

export function legend(node, catalogue) {
  const group = (name, ...keys) => element("span", { class: "group" }, element("b", {}, name), ...keys);
  node.replaceChildren(
    group("iteration", ...catalogue.phases.map((phase, at) => swatch(`var(--phase-${at})`, phase))),
    group("bytes", ...catalogue.classes.map((class_, at) => swatch(catalogue.colours[at], class_))),
    element("span", { class: "tail", id: "resolution" }));
}

// What the colours of steps say.
export const causes = (node) => node.replaceChildren(swatch("var(--step)", "as usual"), swatch("var(--alarm)", "slowed by the network"),
  swatch("var(--own)", "by the job or its host"), swatch("var(--calm)", "cause not known"), element("span", {}, "- - usual"));

// A step: what was added to its usual time, piece by piece, and where the time of each rank went.
// step: job (as people call it), iteration, from, at, duration_ns; verdict: on it, where one is known.
export async function step(node, catalogue, one, verdict) {
  const job = catalogue.jobs.find((known) => known.name === one.job);
  const head = [
    element("h2", {}, `Iteration ${one.iteration} of ${one.job}`),
    element("p", { class: "note" }, `${both(catalogue.origin + BigInt(Math.round(one.from)), 1e6)} · took ${duration(one.duration_ns)}`)];
  const show = (known, ...more) => node.replaceChildren(...head, ...(known ? waterfall(known) : []), ...more);
  show(verdict, element("p", { class: "busy" }, "looking at its ranks …"));
  if (!catalogue.full) return show(verdict, verdict ? "" : element("p", { class: "note" }, "It did not stand out."));
  const requested = (node.requested = {});
  try {
    const end = catalogue.origin + BigInt(Math.round(one.at));
    const reply = await json(`/api/explain?job=${encodeURIComponent(job?.job ?? one.job)}&iteration=${one.iteration}&end_ns=${end}`);
    if (node.requested !== requested) return; // another one has been chosen meanwhile
    show(verdict ?? reply.verdict,
      reply.path ? element("p", {}, reply.path) : "",
      reply.ranks.length ? table(["rank", "host", "took", "computed", "waited", "transfer", "held up"], reply.ranks.map((rank) =>
        [`${rank.rank}`, rank.host, duration(rank.duration_ns), ...["computed_ns", "waited_ns", "transfer_ns", "stalled_ns"].map((name) =>
          rank.known ? duration(rank[name]) : "?")]), 2) : "",
      ...(reply.groups?.length ? [element("h2", { class: "sub" }, "Groups of ranks in the minute before"),
        table(["group", "kind", "ranks", "in a step, per rank", "when", "waits"], reply.groups.map((one) => [one.group, one.kind, one.ranks, one.calls, one.when, one.waits]), 5)] : []));
  } catch (error) {
    if (node.requested === requested) show(verdict, element("p", { class: "note" }, error.message));
  }
}

function waterfall(verdict) {
  const most = Math.max(verdict.duration_ns, verdict.baseline_ns, 1);
  let until = 0;
  const bar = (name, from, to, kind) => {
    const piece = element("i", { class: kind });
    piece.style.left = `${(100 * Math.min(from, to)) / most}%`;
    piece.style.width = `${(100 * Math.abs(to - from)) / most}%`;
    return element("div", { class: "fall" }, element("span", {}, name), element("span", { class: "bar" }, piece), element("span", { class: "n" }, duration(to - from)));
  };
  const rows = verdict.parts.map(([name, ns], at) => bar(at ? `+ ${name}` : name === "usual" ? "a usual step" : name, until, (until += ns), at ? (ns < 0 ? "less" : "more") : "usual"));
  rows.push(bar("this step", 0, verdict.duration_ns, "whole"));
  const sum = verdict.parts.map(([name, ns], at) => `${at ? (ns < 0 ? "− " : "+ ") : ""}${name} ${duration(Math.abs(ns))}`).join(" ");
  return [element("p", {}, verdict.sentence), element("div", { class: "falls", role: "img", "aria-label": `${sum} = ${duration(verdict.duration_ns)}` }, ...rows),
    element("p", { class: "sum" }, `${sum} = ${duration(verdict.duration_ns)}`),
    element("details", {}, element("summary", {}, "Arithmetic"), element("pre", {}, verdict.arithmetic.join("\n")))];
}

// What was carried in a time: by class, by process, by flow, each beside the time before. hosts: none for all.
const MOST_FLOWS = 12;
export async function span(node, catalogue, hosts, begin, end) {
  const requested = (node.requested = {});
  const at = (ns) => catalogue.origin + BigInt(Math.round(ns));
  const head = [element("h2", {}, hosts[0] ?? "All hosts"), element("p", { class: "note" }, `${both(at(begin), 1e6)} + ${duration(end - begin)}`)];
  if (!catalogue.full) return node.replaceChildren(...head, element("p", {}, "This viewer sees jobs, classes and rates only."));
  node.replaceChildren(...head, element("p", { class: "busy" }, "adding up what was carried …"));
  try {
    const of = hosts.map((host) => `&host=${encodeURIComponent(host)}`).join("");
    const reply = await json(`/api/span?begin_ns=${at(begin)}&end_ns=${at(end)}${of}`);
    if (node.requested !== requested) return;
    if (!reply.all) return node.replaceChildren(...head, element("p", {}, "Nothing was carried in this time, nor in the one before."));
    const change = (one) => (one.before ? `${one.now >= one.before ? "+" : "−"}${Math.round(Math.abs(100 * (one.now / one.before - 1)))} %` : "new");
    const sums = (name, rows, words) => [element("h2", { class: "sub" }, name), table(["", "sent", "received", "before"], rows.map((one) =>
      [words(one), bytes(one.sent), bytes(one.received), change(one)]))];
    const more = Object.keys(reply.counts).filter((name) => name !== "wire_bytes");
    const names = new Map(catalogue.jobs.map((one) => [one.job, one.name]));
    const job = (name) => names.get(name) ?? name;
    const who = (one) => (one.job ? `${job(one.job)}/${one.rank}` : one.process || "not known");
    const part = reply.read_ns < Math.floor(end - begin) ? `estimated: of this time ${duration(reply.read_ns)} were read, in pieces` : "";
    node.replaceChildren(...head, part ? element("p", { class: "note" }, part) : "",
      ...sums("By class", reply.classes, (one) => one.class),
      ...sums("By process", reply.processes, (one) => [one.name, [one.user, hosts.length ? "" : one.host].filter(Boolean).join(", ")].filter(Boolean).join(" · ")),
      element("h2", { class: "sub" }, "Largest flows"),
      table(["flow", "class", "bytes", ...more.map((name) => reply.counts[name]), "rate", "before"], reply.flows.slice(0, MOST_FLOWS).map((one) => [
        element("span", {}, `${who(one)} ${one.direction}, ${one.host}`, element("br"), element("small", { class: "note" }, `${end_(one.src, one.src_port)} → ${end_(one.dst, one.dst_port)}`)),
        one.class, bytes(one.now), ...more.map((name) => count(name, one[name])), rate((8e9 * one.now) / (end - begin)), change(one)]), 2),
      reply.all > MOST_FLOWS ? element("p", { class: "note" }, `of ${reply.all.toLocaleString("en")} flows; “before” is the span before, as long`) : element("p", { class: "note" }, "“before” is the span before, as long"),
      element("button", { onclick: () => save(reply.flows, more, `netmon-${hosts[0] ?? "all"}-${clock(at(begin))}.csv`.replaceAll(":", "")) }, "Save as CSV"));
  } catch (error) {
    if (node.requested === requested) node.replaceChildren(...head, element("p", { class: "note" }, error.message));
  }
}

// What a spreadsheet would take for a formula is text there.
const HEADS = ["host", "direction", "class", "process", "user", "container", "job", "rank", "src", "src_port", "dst", "dst_port", "protocol", "now", "before"];
function csv(flows, more) {
  const heads = [...HEADS, ...more];
  const cell = (value) => {
    const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : `${value ?? ""}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [heads.map((name) => ({ now: "wire_bytes", before: "wire_bytes_before" })[name] ?? name), ...flows.map((one) => heads.map((name) => cell(one[name])))].map((row) => row.join(",")).join("\r\n") + "\r\n";
}
function save(flows, more, name) {
  const link = element("a", { href: URL.createObjectURL(new Blob([csv(flows, more)], { type: "text/csv" })), download: name.replaceAll(/[^\w.-]/g, "_") });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
const count = (name, value) => (value === undefined || value === null ? "?" : name.endsWith("_bytes") ? bytes(value) : value.toLocaleString("en"));
const end_ = (address, port) => (port ? (String(address).includes(":") ? `[${address}]:${port}` : `${address}:${port}`) : address ?? "?");

export async function advice(node) {
  try {
    const reply = await json("/api/advice");
    const share = (one) => `${Math.round(100 * one)} %`;
    node.replaceChildren(
      element("h2", {}, "What could be done"),
      element("ul", {}, ...reply.advice.map((line) => element("li", {}, line))),
      reply.jobs.length ? element("h2", { class: "sub" }, "Jobs") : "",
      reply.jobs.length ? table(["job", "takes", "alone", "transfers"], reply.jobs.map((one) => [one.job, duration(one.duration_ns), duration(one.alone_ns), share(one.busy)])) : "",
      reply.pairs.length ? element("h2", { class: "sub" }, "Pairs of ranks") : "",
      reply.pairs.length ? table(["pair", "bytes", "pace while it sends"], reply.pairs.map((one) => [`${one.source} → ${one.target}${one.slow ? " (slow)" : ""}`, bytes(one.bytes), rate(one.pace_bps)])) : "");
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
