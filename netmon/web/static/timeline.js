// SPDX-License-Identifier: Apache-2.0
// The timeline: lanes from top to bottom, time from left to right, on one canvas that is drawn when something changes.

import { clock, day, duration, local, rate, zone } from "./format.js";
import { GAP, HEIGHTS, palette, strips } from "./paint.js";
import { Processes } from "./processes.js";
import { Tiles } from "./tiles.js";

const labels = matchMedia("(max-width: 600px)");
export let LABELS = labels.matches ? 104 : 168; // px
labels.addEventListener("change", () => (LABELS = labels.matches ? 104 : 168));
export const AXIS = 30;
const STEPS = [1, 2, 5];
const FONT = "12px system-ui, sans-serif";
const SMALL = "11px system-ui, sans-serif";

export class Timeline {
  // handlers: onstale (other lanes), onmoved (another time is shown), onnews (a tile has come), onframe (ms since the last one).
  constructor(canvas, scroller, view, handlers) {
    Object.assign(this, { canvas, scroller, view, handlers, verdicts: [], selected: null, lane: -1, hover: null, now: 0, live: false });
    Object.assign(this, { opened: null, pinned: [], ends: null, rows: [], lanes: [], measured: null }); // opened: lanes of jobs, ranks and hosts
    this.processes = new Processes(() => this.arrange());
    this.context = canvas.getContext("2d", { alpha: false });
    new ResizeObserver(() => this.resize()).observe(canvas.parentElement);
    scroller.addEventListener("scroll", () => this.redraw());
    this.last = 0;
  }

  show(catalogue) {
    const known = this.catalogue;
    this.catalogue = catalogue;
    this.tiles = new Tiles(catalogue, () => (this.redraw(), this.handlers.onnews?.()), () => this.handlers.onstale());
    this.byJob = new Map(catalogue.lanes.filter((lane) => lane.kind === "job").map((lane) => [lane.job.name, lane.at]));
    const open = known && this.opened && new Set([...this.opened].map((at) => name(known.lanes[at])));
    this.opened = open && new Set(catalogue.lanes.filter((lane) => open.has(name(lane))).map((lane) => lane.at));
    this.pinned = [];
    this.ends = null;
    this.repaint();
    this.resize();
  }

  toggle(at) {
    if (at < 0 || this.lanes[at].kind === "process") return;
    if (!this.opened.delete(at)) this.opened.add(at);
    this.arrange();
    this.reveal(at);
  }
  open(at) {
    const { lanes } = this.catalogue;
    const job = lanes.findLastIndex((one, index) => index <= at && one.kind === "job");
    if (job >= 0 && lanes[at].job) this.opened.add(job);
    if (lanes[at].kind === "host") for (const one of lanes) if (one.kind === "rank" && one.host === lanes[at].host && one.job === lanes[at].job) this.opened.add(one.at);
    this.arrange();
    this.reveal(at);
  }
  // Culprit and victim one below the other; ends: hosts between whom an arrow goes.
  pin(lanes, ends = null) {
    const same = this.pinned.join() === lanes.join();
    Object.assign(this, { pinned: lanes, ends });
    if (!same) this.arrange();
    if (!same && lanes.length) this.scroller.scrollTop = 0;
  }
  // Of a host that is opened a lane for each of its processes.
  below(at) {
    const host = this.lanes[at];
    if (host.kind !== "host" || !this.opened.has(at)) return [];
    const { names } = this.processes.known.get(host.host) ?? { names: ["reading …"] };
    return names.map((process, row) => this.lanes.push({ at: this.lanes.length, kind: "process", of: at, host: host.host, process, row, capacity: host.capacity }) - 1);
  }
  get openedHosts() {
    return this.rows.filter((at) => this.lanes[at].kind === "host" && this.opened.has(at)).map((at) => this.lanes[at]);
  }
  // Which lanes are shown, and where: all if there is room, else a row for each job.
  arrange() {
    if (!this.catalogue) return;
    const { lanes } = this.catalogue;
    const room = this.tall - AXIS - 12;
    const high = (at) => HEIGHTS[this.lanes[at].kind] + (this.lanes[at].kind === "host" ? 6 : GAP);
    this.lanes = lanes;
    if (!this.opened) {
      const all = lanes.reduce((sum, one) => sum + high(one.at), 0);
      this.opened = new Set(all <= room ? lanes.filter((one) => one.kind !== "host").map((one) => one.at) : []);
    }
    const shown = lanes.filter((one) => {
      if (one.kind === "job" || !one.job) return true;
      const job = this.byJob.get(one.job.name);
      if (!this.opened.has(job)) return false;
      return one.kind === "rank" || lanes.some((rank) => rank.kind === "rank" && rank.job === one.job && rank.host === one.host && this.opened.has(rank.at));
    }).map((one) => one.at).filter((at) => !this.pinned.includes(at));
    this.lanes = [...lanes];
    const order = [...this.pinned, ...shown].flatMap((at) => [at, ...this.below(at)]);
    const pinned = order.filter((at) => this.pinned.includes(this.lanes[at].of ?? at)).length;
    const needed = order.reduce((sum, at) => sum + high(at), 0) + (this.pinned.length ? 14 : 0);
    const gaps = order.reduce((sum, at) => sum + high(at) - HEIGHTS[this.lanes[at].kind], 24);
    this.grow = Math.min(Math.max((room - gaps) / Math.max(needed - gaps, 1), 1), 3);
    let y = 0;
    this.rows = [];
    this.boxes = new Array(this.lanes.length);
    for (const [index, at] of order.entries()) {
      if (index === pinned && index) y += 14;
      else if (this.lanes[at].kind === "job" && index) y += 6;
      const place = { y, height: Math.round(HEIGHTS[this.lanes[at].kind] * this.grow) };
      this.boxes[at] = place;
      this.rows.push(at);
      y += place.height + (this.lanes[at].kind === "host" ? 6 : GAP);
    }
    this.pinnedRows = pinned;
    this.height = y;
    this.scroller.firstElementChild.style.height = `${this.height + AXIS + 24}px`;
    this.redraw();
  }
  repaint() {
    this.colours = palette(this.catalogue);
    this.redraw();
  }
  resize() {
    const { clientWidth: width, clientHeight: height } = this.canvas.parentElement;
    this.ratio = Math.min(window.devicePixelRatio || 1, 2);
    this.width = width - 12;
    this.tall = height;
    this.canvas.width = Math.round(this.width * this.ratio);
    this.canvas.height = Math.round(height * this.ratio);
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${height}px`;
    this.arrange();
  }

  get body() {
    return Math.max(this.width - LABELS, 50);
  }
  x(ns) {
    return LABELS + ((ns - this.view.begin) / this.view.span) * this.body;
  }
  time(x) {
    return this.view.begin + ((x - LABELS) / this.body) * this.view.span;
  }
  laneAt(y) {
    const at = y - AXIS + this.scroller.scrollTop;
    let low = 0;
    for (let high = this.rows.length; low < high; ) {
      const middle = (low + high) >> 1;
      if (this.boxes[this.rows[middle]].y + this.boxes[this.rows[middle]].height + GAP < at) low = middle + 1;
      else high = middle;
    }
    return y < AXIS || low >= this.rows.length || this.boxes[this.rows[low]].y > at ? -1 : this.rows[low];
  }
  reveal(lane) {
    if (!this.boxes[lane]) return this.open(lane);
    const { y, height } = this.boxes[lane];
    const room = this.tall - AXIS - 20;
    if (y < this.scroller.scrollTop) this.scroller.scrollTop = y - 8;
    else if (y + height > this.scroller.scrollTop + room) this.scroller.scrollTop = y + height - room + 8;
  }

  // How things stand: until when something is known, and whether it goes on. Between two looks time goes on by itself.
  stands(end, live) {
    const ahead = end - performance.now() * 1e6;
    const jump = !this.live || Math.abs(ahead - this.ahead) > 5e9;
    this.ahead = jump ? ahead : this.ahead + 0.15 * (ahead - this.ahead);
    Object.assign(this, { live, end });
    this.seen = performance.now();
    if (jump || !this.scrolls) this.now = end;
  }
  get scrolls() {
    return this.live && this.view.follow && !this.view.still && performance.now() - this.seen < 5000;
  }

  redraw() {
    if (this.due) return;
    this.due = requestAnimationFrame((now) => {
      this.due = 0;
      const passed = Math.min(now - this.last, 100);
      this.handlers.onframe?.(now - this.last);
      this.last = now;
      if (this.scrolls) {
        const end = Math.max(this.now, Math.min(now * 1e6 + this.ahead, this.end + 2e9)); // a source that is silent stands still
        this.view.keepUp(end, Math.min(Math.max(end - this.now, 0), 2e8));
        this.now = end;
      }
      const moves = this.view.step(passed);
      if (this.catalogue) this.draw();
      if (moves || this.scrolls) {
        this.handlers.onmoved(moves && !this.view.follow);
        this.redraw();
      }
    });
  }

  draw() {
    const { context: c, ratio, colours } = this;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.fillStyle = colours.ground;
    c.fillRect(0, 0, this.width, this.tall);
    const level = this.tiles.level(this.view.span / this.body);
    this.level = level;
    const rows = this.visible();
    c.save();
    c.beginPath();
    c.rect(LABELS, AXIS, this.body, this.tall - AXIS);
    c.clip();
    this.drawLanes(rows);
    for (const [begin, end] of this.catalogue.unheard) this.drawUnknown(level, rows, begin, end);
    this.drawTiles(level, rows);
    this.drawProcesses(rows);
    this.drawSlices(level, rows);
    this.drawMarks(rows);
    c.restore();
    this.drawLabels(rows);
    this.drawAxis();
  }
  visible() {
    const top = this.scroller.scrollTop;
    return this.rows.filter((at) => this.boxes[at].y + this.boxes[at].height >= top && this.boxes[at].y < top + this.tall - AXIS);
  }
  y(lane) {
    return AXIS + this.boxes[lane].y - this.scroller.scrollTop;
  }

  drawLanes(rows) {
    const c = this.context;
    for (const lane of rows) {
      c.fillStyle = lane === this.lane ? this.colours.faint : this.colours.lane;
      c.fillRect(LABELS, this.y(lane), this.body, this.boxes[lane].height);
    }
  }
  // Nobody listened to the rates then; a moment's are requested.
  drawUnknown(level, rows, begin, end) {
    const { context: c, catalogue, colours } = this;
    const left = Math.max(this.x(begin), LABELS);
    const right = Math.min(this.x(end), this.width);
    if (right <= left || this.tiles.span(level) <= catalogue.moment_ns) return;
    const text = catalogue.full ? "rates not known: zoom in to ask for a moment's" : "rates not known";
    c.font = SMALL;
    c.textBaseline = "middle";
    for (const lane of rows) {
      if (this.lanes[lane].kind !== "host") continue;
      const { height } = this.boxes[lane];
      c.fillStyle = colours.line;
      c.globalAlpha = 0.5;
      c.fillRect(left, this.y(lane), right - left, height);
      c.globalAlpha = 1;
      if (right - left < 280) continue;
      c.fillStyle = colours.calm;
      c.fillText(text, left + 8, this.y(lane) + height / 2);
    }
  }
  drawTiles(level, rows) {
    const { context: c, ratio, tiles, grow } = this;
    const span = tiles.span(level);
    const from = Math.floor(this.view.begin / span);
    const to = Math.floor((this.view.begin + this.view.span) / span);
    const wanted = [];
    let whole = true;
    c.imageSmoothingEnabled = (span / this.view.span) * this.body < tiles.bins; // one bucket is one sharp bar
    rows = rows.filter((at) => this.lanes[at].kind !== "process");
    for (const block of new Set(rows.map((at) => Math.floor(at / tiles.block)))) {
      const boxes = strips(tiles.lanes(block), ratio * grow);
      const own = rows.filter((at) => Math.floor(at / tiles.block) === block);
      for (let index = from; index <= to; index++) {
        wanted.push([level, index, block]);
        const found = tiles.nearest(level, index, block);
        whole &&= found !== null;
        const picture = found && tiles.picture(found[0], ratio * grow, this.colours);
        if (!picture) continue;
        const x = this.x(index * span);
        const width = (span / this.view.span) * this.body;
        for (const at of own) {
          const strip = boxes[at - block * tiles.block];
          c.drawImage(picture, found[1] * tiles.bins, strip.y, found[2] * tiles.bins, strip.height, x, this.y(at), width, this.boxes[at].height);
        }
      }
    }
    c.imageSmoothingEnabled = true;
    tiles.want(wanted);
    if (whole && !this.whole) performance.mark("netmon-first-picture");
    this.whole ||= whole;
  }
  drawProcesses(rows) {
    const c = this.context;
    for (const at of rows) {
      const lane = this.lanes[at];
      if (lane.kind !== "process") continue;
      const { rate_bps: rates, bins, width_ns: width, begin } = this.processes.known.get(lane.host) ?? {};
      if (!rates?.length) continue;
      const scale = this.tiles.scale(this.lanes[lane.of]);
      const { height } = this.boxes[at];
      const middle = this.y(at) + height / 2;
      const wide = Math.max(this.x(begin + width) - this.x(begin), 0.5);
      c.fillStyle = this.colours.own;
      for (let way = 0; way < 2; way++)
        for (let bin = 0, from = (lane.row * 2 + way) * bins; bin < bins; bin++) {
          const high = Math.min(rates[from + bin] / scale, 1) * (height / 2);
          if (high > 0) c.fillRect(this.x(begin + bin * width), way ? middle - high : middle, wide, Math.max(high, 0.7));
        }
      c.fillStyle = this.colours.line;
      c.fillRect(LABELS, middle, this.body, 1);
    }
  }
  drawSlices(level, rows) {
    const c = this.context;
    const end = this.view.begin + this.view.span;
    c.font = SMALL;
    c.textBaseline = "middle";
    for (const lane of rows) {
      if (!this.lanes[lane].job || this.lanes[lane].kind === "host") continue;
      const y = this.y(lane);
      const { height } = this.boxes[lane];
      for (const slice of this.tiles.slices(level, lane, this.view.begin, end)) {
        const left = this.x(slice.bounds[0]);
        const right = this.x(slice.bounds[5]);
        if (right - left < 5) continue;
        c.fillStyle = this.colours.ground;
        c.fillRect(left - 0.5, y, 1, height);
        if (right - left < 34) continue;
        const at = Math.max(left, LABELS) + 4;
        const text = `${slice.number}`;
        const more = `${text}   ${duration(slice.bounds[5] - slice.bounds[0])}`;
        const room = Math.min(right, this.width) - at - 4;
        const shown = room > more.length * 6.2 ? more : room > text.length * 6.5 ? text : "";
        if (!shown) continue;
        c.fillStyle = this.colours.lane;
        c.globalAlpha = 0.78;
        const middle = y + Math.max(height / 2, height - 7); // below a flag
        c.fillRect(at - 2, middle - 6.5, shown.length * 6 + 5, 13);
        c.globalAlpha = 1;
        c.fillStyle = this.colours.ink;
        c.fillText(shown, at, middle + 0.5);
      }
    }
  }
  // A flag stands where its iteration begins; where they crowd, a tick.
  drawMarks(rows) {
    const c = this.context;
    const bottom = this.tall;
    const before = new Map(); // by lane, where the last flag is
    this.flags = [];
    for (const verdict of this.verdicts) {
      const x = this.x(verdict.from);
      const lane = this.byJob.get(verdict.job);
      if (lane === undefined || !this.boxes[lane] || x < LABELS - 20 || x > this.width + 20) continue;
      const y = this.y(lane);
      c.fillStyle = verdict.network ? this.colours.bad : this.colours.calm;
      const crowded = x - (before.get(lane) ?? -Infinity) < 17;
      if (crowded) {
        if (y > AXIS - 30 && y < bottom) c.fillRect(x, y, 2, 5);
        continue;
      }
      before.set(lane, x);
      if (y < AXIS - 30 || y > bottom) continue;
      this.flags.push({ x, y, verdict });
      c.beginPath();
      c.moveTo(x, y);
      c.lineTo(x + 15, y);
      c.lineTo(x + 11, y + 6.5);
      c.lineTo(x + 15, y + 13);
      c.lineTo(x, y + 13);
      c.fill();
      c.fillStyle = this.colours.ground;
      c.font = "bold 10px system-ui, sans-serif";
      c.textBaseline = "middle";
      c.fillText(verdict.letter, x + 2.5, y + 7);
    }
    this.drawArrow();
    if (this.measured) {
      const [left, right] = this.measured.map((ns) => this.x(ns));
      c.fillStyle = this.colours.accent;
      c.globalAlpha = 0.18;
      c.fillRect(left, AXIS, right - left, bottom);
      c.globalAlpha = 1;
    }
    if (this.selected && !this.boxes[this.selected.lane]) this.selected = null;
    if (this.selected) {
      const { lane, bounds } = this.selected;
      c.strokeStyle = this.colours.accent;
      c.lineWidth = 2;
      const x = this.x(bounds[0]);
      c.strokeRect(x, this.y(lane) - 1, Math.max(2, this.x(bounds[5]) - x), this.boxes[lane].height + 2);
    }
    if (this.live) {
      const x = this.x(this.now);
      c.fillStyle = this.colours.accent;
      c.fillRect(x, AXIS, 1, bottom);
    }
    if (this.hover !== null) {
      c.fillStyle = this.colours.line;
      c.fillRect(this.hover, AXIS, 1, bottom);
    }
  }
  // From the culprit's host to the victim's, at the middle of what is shown of their incident.
  drawArrow() {
    const { context: c, ends } = this;
    if (!ends || !this.boxes[ends.from] || !this.boxes[ends.to]) return;
    const middle = (lane) => this.y(lane) + this.boxes[lane].height / 2;
    const [top, bottom] = [middle(ends.from), middle(ends.to)];
    const left = Math.max(this.x(ends.begin), LABELS);
    const x = Math.min(Math.max((left + Math.min(this.x(ends.end), this.width)) / 2, LABELS + 20), this.width - 20);
    const way = Math.sign(bottom - top);
    c.strokeStyle = c.fillStyle = this.colours.bad;
    c.lineWidth = 3;
    c.beginPath();
    c.moveTo(x, top);
    c.lineTo(x, bottom - way * 9);
    c.stroke();
    c.beginPath();
    c.moveTo(x, bottom);
    c.lineTo(x - 8, bottom - way * 12);
    c.lineTo(x + 8, bottom - way * 12);
    c.fill();
    c.beginPath();
    c.arc(x, top, 5, 0, 7);
    c.fill();
  }
  drawLabels(rows) {
    const { context: c, colours } = this;
    c.fillStyle = colours.ground;
    c.fillRect(0, AXIS, LABELS - 1, this.tall);
    c.textBaseline = "middle";
    for (const at of rows) {
      const lane = this.lanes[at];
      const y = this.y(at) + this.boxes[at].height / 2;
      c.font = lane.kind === "job" ? `bold ${FONT}` : lane.kind === "host" ? FONT : SMALL;
      c.fillStyle = lane.kind === "job" || lane.kind === "host" ? colours.ink : colours.calm;
      const mark = lane.kind === "process" ? "" : this.opened.has(at) ? "▾ " : "▸ ";
      const pinned = this.pinned.includes(at) && lane.job && lane.kind === "rank" ? `, ${lane.host}` : "";
      const text = mark + (lane.kind === "job" ? lane.job.name : lane.kind === "rank" ? `rank ${lane.rank}${pinned}` : lane.process ?? lane.host);
      c.fillText(cut(c, text, LABELS - ({ host: 54, process: 32 }[lane.kind] ?? 18)), { job: 8, process: 28 }[lane.kind] ?? 16, lane.kind === "host" ? y - 7 : y);
      if (lane.kind !== "host") continue;
      c.font = SMALL;
      c.fillStyle = colours.calm;
      c.fillText(lane.capacity ? rate(lane.capacity) : `≤ ${rate(this.tiles.scale(lane))}`, 16, y + 8);
      c.textAlign = "right";
      const [up, down] = labels.matches ? ["↑", "↓"] : ["tx ↑", "rx ↓"];
      c.fillText(up, LABELS - 8, y - 10);
      c.fillText(down, LABELS - 8, y + 11);
      c.textAlign = "left";
    }
    if (this.pinned.length) {
      c.fillStyle = colours.line;
      const last = this.rows[this.pinnedRows - 1];
      c.fillRect(0, this.y(last) + this.boxes[last].height + 9, this.width, 1);
    }
    if (this.boxes[this.lane] && rows.includes(this.lane)) {
      c.fillStyle = colours.accent;
      c.fillRect(0, this.y(this.lane), 3, this.boxes[this.lane].height);
    }
  }
  drawAxis() {
    const { context: c, colours, view } = this;
    c.fillStyle = colours.ground;
    c.fillRect(0, 0, this.width, AXIS);
    c.fillStyle = colours.line;
    c.fillRect(0, AXIS - 1, this.width, 1);
    const least = (view.span / this.body) * 118;
    const ten = 10 ** Math.floor(Math.log10(least));
    let step = STEPS.map((one) => one * ten).find((one) => one >= least) ?? 10 * ten;
    if (step > 1e10) step = [15, 30, 60, 120, 300, 600, 1800, 3600, 7200].map((s) => s * 1e9).find((one) => one >= least) ?? 1.44e13;
    c.font = SMALL;
    c.textBaseline = "middle";
    const both = zone() !== "UTC";
    const shift = Number(view.origin % BigInt(Math.round(step))); // marks are at whole minutes of the day
    for (let at = Math.ceil((view.begin + shift) / step) * step - shift; at < view.begin + view.span; at += step) {
      const x = this.x(at);
      if (x < LABELS) continue;
      c.fillStyle = colours.line;
      c.fillRect(x, 0, 1, AXIS);
      c.fillStyle = colours.ink;
      const ns = view.origin + BigInt(Math.round(at));
      c.fillText(clock(ns, step), x + 4, both ? 8 : AXIS / 2);
      if (!both) continue;
      c.fillStyle = colours.calm;
      c.fillText(local(ns, step), x + 4, 21);
    }
    c.fillStyle = colours.ground;
    c.fillRect(0, 0, LABELS, AXIS - 1);
    c.fillStyle = colours.calm;
    c.fillText(`${day(view.origin + BigInt(Math.round(view.begin)))}, UTC`, 8, both ? 8 : AXIS / 2);
    if (both) c.fillText(`here, ${zone()}`, 8, 21);
  }
}

const name = (lane) => `${lane.kind}/${lane.job?.name}/${lane.rank}/${lane.host}`;

function cut(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let shown = text;
  while (shown.length > 3 && context.measureText(`${shown}…`).width > room) shown = shown.slice(0, -1);
  return `${shown}…`;
}
