// SPDX-License-Identifier: Apache-2.0
// The steps of one job over all the time that there is: a bar each, their usual time, incidents; and what of it the
// timeline shows, which can be chosen here.

import { columns } from "./data.js";
import { duration, local } from "./format.js";

const LEFT = 66; // px
const BOTTOM = 17;
const HOUR_NS = 3.6e12;
const AGAIN_MS = 1000;
const NOTABLE = 1.2; // × the usual time: an iteration that stands out

export class StepChart {
  // handlers: onbrush(begin, end), onstep(step), ontip(lines, x, y)
  constructor(plot, brush, view, handlers) {
    Object.assign(this, { plot, brush, view, handlers, canvas: plot.querySelector("canvas"), incidents: [], job: "", bars: null, requested: -Infinity });
    this.context = this.canvas.getContext("2d");
    new ResizeObserver(() => this.draw()).observe(plot);
    this.listen();
  }

  // Which time: all that there is, or the hour around what is shown, or more if more is shown.
  range(begin, end) {
    if (end - begin <= HOUR_NS) return [begin, Math.max(end - begin, 1e9)];
    const span = Math.max(HOUR_NS, this.view.toSpan);
    const middle = Math.min(Math.max(this.view.toBegin + this.view.toSpan / 2, begin + span / 2), end - span / 2);
    return this.begin !== undefined && this.span === span && Math.abs(this.begin + span / 2 - middle) < span / 4 && end - this.begin < span * 1.3 ? [this.begin, this.span] : [middle - span / 2, span];
  }

  // What has come since is requested once a second, and drawn where it differs.
  async update(catalogue, now, live, job, version) {
    const [begin, span] = this.range(catalogue.begin, Math.max(now, catalogue.begin + 1));
    const wanted = `${job}/${Math.round(begin)}/${Math.round(span)}/${live ? 0 : version}`;
    const due = wanted !== this.wanted || live || this.bars?.pending;
    if (!job || this.busy || !due || performance.now() - this.requested < (wanted === this.wanted ? AGAIN_MS : 0)) return;
    Object.assign(this, { busy: true, requested: performance.now(), wanted });
    try {
      const from = catalogue.origin + BigInt(Math.round(begin));
      const bars = await columns(`/api/steps?job=${encodeURIComponent(job)}&begin_ns=${from}&end_ns=${from + BigInt(Math.round(span))}`);
      Object.assign(this, { bars, begin, span, job, origin: catalogue.origin, causes: catalogue.causes });
      this.draw();
    } catch {
      this.wanted = ""; // it is requested again
    } finally {
      this.busy = false;
    }
  }

  x(ns) {
    return LEFT + ((ns - this.begin) / this.span) * (this.width - LEFT);
  }
  time(x) {
    return this.begin + ((x - LEFT) / (this.width - LEFT)) * this.span;
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.plot;
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    Object.assign(this, { width, height });
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio))
      Object.assign(this.canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
    if (!this.bars) return;
    const { context: c, bars } = this;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, width, height);
    const room = height - BOTTOM;
    const most = Math.max(bars.took_ns.reduce((a, b) => Math.max(a, b), 0), 1) * 1.06;
    const y = (ns) => room - (ns / most) * room;
    this.y = y;
    c.globalAlpha = 0.18;
    for (const one of this.incidents) {
      const [left, right] = [Math.max(this.x(one.from), LEFT), this.x(one.to)];
      if (one.job !== this.job || right < LEFT || left > width) continue;
      c.fillStyle = colour(one.network ? "alarm" : "calm");
      c.fillRect(left, 0, Math.max(right - left, 2), room);
    }
    c.globalAlpha = 1;
    const colours = { usual: colour("step"), network: colour("alarm"), own: colour("own"), unknown: colour("calm") };
    let slow = 0;
    for (let at = 0; at < bars.took_ns.length; at++) {
      const left = this.x(this.begin + bars.start_ns[at]);
      const wide = (bars.took_ns[at] / this.span) * (width - LEFT);
      const longer = bars.took_ns[at] >= NOTABLE * bars.baseline_ns[at]; // and nobody has said why, or not yet
      const group = this.causes[bars.cause[at]]?.group ?? (longer ? "unknown" : "usual");
      slow += group !== "usual";
      c.fillStyle = colours[group];
      c.fillRect(Math.max(left, LEFT), y(bars.took_ns[at]), Math.max(wide - (wide > 4 ? 1 : 0), 1), room - y(bars.took_ns[at]));
    }
    c.strokeStyle = colour("ink");
    c.setLineDash([5, 4]);
    c.beginPath();
    for (let at = 0; at < bars.baseline_ns.length; at++) {
      c.lineTo(Math.max(this.x(this.begin + bars.start_ns[at]), LEFT), y(bars.baseline_ns[at]));
      c.lineTo(this.x(this.begin + bars.start_ns[at] + bars.took_ns[at]), y(bars.baseline_ns[at]));
    }
    c.stroke();
    c.setLineDash([]);
    c.font = "11px system-ui, sans-serif";
    c.fillStyle = colour("ink");
    c.textBaseline = "middle";
    c.textAlign = "right";
    const usual = bars.baseline_ns[bars.baseline_ns.length - 1];
    if (usual) c.fillText(duration(usual), LEFT - 6, Math.min(Math.max(y(usual), 8), room - 8));
    if (!usual || y(usual) > 26) c.fillText(duration(most / 1.06), LEFT - 6, 10);
    c.fillStyle = colour("line");
    c.fillRect(LEFT, room, width - LEFT, 1);
    c.fillStyle = colour("calm");
    c.textAlign = "left";
    const count = Math.max(1, Math.floor((width - LEFT) / 130));
    for (let at = 0; at < count; at++) {
      const ns = this.begin + (at / count) * this.span;
      c.fillRect(this.x(ns), room, 1, 4);
      c.fillText(local(this.origin + BigInt(Math.round(ns))).slice(-8), this.x(ns) + 3, room + 10);
    }
    document.getElementById("steps-title").textContent = `Step times of ${this.job}`;
    this.canvas.setAttribute("aria-description", `${bars.took_ns.length} steps, ${slow} of them slow, usual ${duration(usual || 0)}`);
    this.place();
  }

  // Shows which part the timeline shows.
  place() {
    const { view, brush } = this;
    if (this.begin === undefined || !this.width) return (brush.hidden = true);
    const left = Math.max(this.x(view.begin), LEFT);
    const right = Math.min(this.x(view.begin + view.span), this.width);
    brush.hidden = right < LEFT || left > this.width;
    this.mark(left, right);
  }
  mark(left, right) {
    this.brush.style.left = `${Math.round(left - LEFT)}px`; // whole pixels: it is not painted anew with every frame
    this.brush.style.width = `${Math.round(Math.max(right - left, 3))}px`;
  }

  // The bar under a place; null: there is none.
  at(x) {
    const { bars } = this;
    if (!bars || x < LEFT) return null;
    const since = this.time(x) - this.begin;
    let found = -1;
    for (let at = 0; at < bars.start_ns.length && bars.start_ns[at] <= since; at++) found = at;
    const next = found + 1;
    const near = this.span / (this.width - LEFT) * 2;
    if (next < bars.start_ns.length && bars.start_ns[next] - since < near && (found < 0 || since > bars.start_ns[found] + bars.took_ns[found])) found = next;
    if (found < 0 || since > bars.start_ns[found] + Math.max(bars.took_ns[found], near)) return null;
    const from = this.begin + bars.start_ns[found];
    const cause = this.causes[bars.cause[found]];
    return { job: this.job, iteration: bars.number[found], from, at: from + bars.took_ns[found], duration_ns: bars.took_ns[found], baseline_ns: bars.baseline_ns[found], cause: cause?.name ?? "" };
  }

  listen() {
    const { plot } = this;
    let drag = null;
    const inside = (event) => event.clientX - plot.getBoundingClientRect().left;
    plot.addEventListener("pointerdown", (event) => {
      if (event.button || this.begin === undefined) return;
      drag = { x: inside(event), moved: false };
      plot.setPointerCapture(event.pointerId);
    });
    plot.addEventListener("pointermove", (event) => {
      const x = inside(event);
      if (drag) {
        drag.moved ||= Math.abs(x - drag.x) > 4;
        if (!drag.moved) return;
        const [left, right] = [Math.max(Math.min(x, drag.x), LEFT), Math.max(x, drag.x)];
        this.brush.hidden = false;
        return this.mark(left, right);
      }
      const step = this.at(x);
      plot.title = step ? `iteration ${step.iteration}: ${duration(step.duration_ns)}${step.baseline_ns ? `, usual ${duration(step.baseline_ns)}` : ""}${step.cause ? `: ${step.cause}` : ""}` : "";
    });
    plot.addEventListener("pointerup", (event) => {
      if (!drag) return;
      const x = inside(event);
      const [left, right] = [Math.max(Math.min(x, drag.x), LEFT), Math.max(x, drag.x)];
      if (drag.moved) this.handlers.onbrush(this.time(left), this.time(right));
      else if (this.at(x)) this.handlers.onstep(this.at(x));
      drag = null;
      this.place();
    });
    plot.addEventListener("pointercancel", () => (drag = null));
  }
}
