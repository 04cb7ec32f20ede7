// SPDX-License-Identifier: Apache-2.0
// The report's figures, of the time that is shown: iteration times, their distribution, rates by class, volumes.

import { columns } from "./data.js";
import { bytes, duration, rate } from "./format.js";
import { element, table } from "./panels.js";

const WIDTH = 344;
const EVERY_MS = 2000;

export class Figures {
  constructor(node) {
    this.node = node;
    this.again();
  }

  // They are due, whatever has changed.
  again() {
    this.requested = -Infinity;
    this.range = "";
  }

  // Draws them anew where that is due; `view` says of which time.
  async show(catalogue, view) {
    const now = performance.now();
    const range = `${view.begin},${view.span}`;
    if (this.busy || now - this.requested < EVERY_MS || (range === this.range && !view.follow && now - this.requested < 10 * EVERY_MS)) return;
    Object.assign(this, { busy: true, requested: now, range });
    try {
      const at = (ns) => catalogue.origin + BigInt(Math.round(ns));
      this.draw(catalogue, await columns(`/api/figures?begin_ns=${at(view.begin)}&end_ns=${at(view.begin + view.span)}`));
    } catch (error) {
      this.node.replaceChildren(element("p", { class: "note" }, error.message));
    } finally {
      this.busy = false;
    }
  }

  draw(catalogue, reply) {
    const style = getComputedStyle(document.documentElement);
    this.ink = style.getPropertyValue("--ink");
    this.line = style.getPropertyValue("--line");
    const seconds = Array.from(reply.rate_s);
    const classes = catalogue.classes.map((name, at) => ({
      label: name, stroke: catalogue.colours[at], width: 1.5, value: (_, v) => (v === null ? "" : rate(v)),
    }));
    const values = catalogue.classes.map((_, at) => reply.rate_bps.subarray(at * seconds.length, (at + 1) * seconds.length));
    const parts = [this.chart("Bytes sent by all hosts, by class", [seconds, ...values.map((one) => Array.from(one))], classes, rate)];
    for (const [at, job] of reply.jobs.entries()) {
      const rows = [...reply.step_job.keys()].filter((row) => reply.step_job[row] === at);
      if (!rows.length) continue;
      const times = rows.map((row) => reply.step_ns[row]);
      const dots = [rows.map((row) => reply.step_s[row]), rows.map((row, n) => (reply.step_stalled[row] ? null : times[n])), rows.map((row, n) => (reply.step_stalled[row] ? times[n] : null))];
      const dot = (label, stroke) => ({ label, stroke, paths: () => null, points: { show: true, size: 4, fill: stroke }, value: (_, v) => (v === null ? "" : duration(v)) });
      parts.push(this.chart(`${job}: iteration time`, dots, [dot("not held up", catalogue.colours[1]), dot("held up", "#D55E00")], duration));
      parts.push(this.chart(`${job}: share of iterations that took at most so long`, ...this.cumulative(times), (v) => `${Math.round(100 * v)} %`, duration));
    }
    parts.push(element("h2", { class: "sub" }, "Payload that a rank sends in an iteration"));
    parts.push(table(["job", "measured", "2·(N−1)/N·P·4", "ratio"], catalogue.jobs.map((job) => [
      job.name, job.measured_bytes === null ? "?" : bytes(job.measured_bytes), job.theory_bytes ? bytes(job.theory_bytes) : "?",
      job.theory_bytes ? (job.measured_bytes / job.theory_bytes).toFixed(2) : ""])));
    this.node.replaceChildren(...parts);
  }

  cumulative(times) {
    const sorted = times.toSorted((a, b) => a - b);
    const share = sorted.map((_, at) => (at + 1) / sorted.length);
    return [[sorted, share], [{ label: "share", stroke: "#0072B2", width: 1.5, value: (_, v) => (v === null ? "" : `${Math.round(100 * v)} %`) }]];
  }

  chart(title, data, series, yFormat, xFormat = null) {
    const holder = element("div", { class: "chart", role: "img", "aria-label": title });
    const axis = { stroke: this.ink, grid: { stroke: this.line, width: 0.5 }, ticks: { stroke: this.line, width: 0.5 }, font: "11px system-ui" };
    new uPlot({
      title, width: WIDTH, height: 150, padding: [6, 8, 0, 0], cursor: { drag: { x: false, y: false } },
      scales: { x: { time: xFormat === null }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.05 : 1] } },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      axes: [
        { ...axis, ...(xFormat ? { values: (_, ticks) => ticks.map(xFormat), space: 70 } : { space: 70 }) },
        { ...axis, size: 74, values: (_, ticks) => ticks.map(yFormat) },
      ],
      legend: { show: series.length > 1, live: false },
      series: [{}, ...series],
    }, data, holder);
    return holder;
  }
}
