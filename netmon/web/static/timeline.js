// SPDX-License-Identifier: Apache-2.0
// The timeline: lanes from top to bottom, time from left to right, on one canvas that is drawn when something changes.

import { clock, day, duration, rate } from "./format.js";
import { GAP, HEIGHTS, palette, strips } from "./paint.js";
import { Tiles } from "./tiles.js";

export const LABELS = 168; // px
export const AXIS = 30;
const STEPS = [1, 2, 5];
const FONT = "12px system-ui, sans-serif";
const SMALL = "11px system-ui, sans-serif";

export class Timeline {
  // told: onstale (other lanes), onmoved (another time is shown), onnews (a tile has come), onframe (ms since the last one).
  constructor(canvas, scroller, view, told) {
    Object.assign(this, { canvas, scroller, view, told, verdicts: [], selected: null, lane: -1, hover: null, now: 0, live: false });
    this.context = canvas.getContext("2d", { alpha: false });
    new ResizeObserver(() => this.resize()).observe(canvas.parentElement);
    scroller.addEventListener("scroll", () => this.redraw());
    this.last = 0;
  }

  show(catalogue) {
    this.catalogue = catalogue;
    this.tiles = new Tiles(catalogue, () => (this.redraw(), this.told.onnews?.()), () => this.told.onstale());
    let y = 0;
    this.places = catalogue.lanes.map((lane, at) => {
      if (lane.kind === "job" && at) y += 6;
      const place = { y, height: HEIGHTS[lane.kind] };
      y += place.height + (lane.kind === "host" ? 6 : GAP);
      return place;
    });
    this.height = y;
    this.byJob = new Map(catalogue.lanes.filter((lane) => lane.kind === "job").map((lane) => [lane.job.name, lane.at]));
    this.repaint();
    this.resize();
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
    this.scroller.firstElementChild.style.height = `${(this.height ?? 0) + AXIS + 24}px`;
    this.redraw();
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
    for (let high = this.places.length; low < high; ) {
      const middle = (low + high) >> 1;
      if (this.places[middle].y + this.places[middle].height + GAP < at) low = middle + 1;
      else high = middle;
    }
    return y < AXIS || low >= this.places.length || this.places[low].y > at ? -1 : low;
  }
  reveal(lane) {
    const { y, height } = this.places[lane];
    const room = this.tall - AXIS - 20;
    if (y < this.scroller.scrollTop) this.scroller.scrollTop = y - 8;
    else if (y + height > this.scroller.scrollTop + room) this.scroller.scrollTop = y + height - room + 8;
  }

  redraw() {
    if (this.due) return;
    this.due = requestAnimationFrame((now) => {
      this.due = 0;
      const passed = Math.min(now - this.last, 100);
      this.told.onframe?.(now - this.last);
      this.last = now;
      const moves = this.view.step(passed);
      if (this.catalogue) this.draw();
      if (moves) {
        this.told.onmoved();
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
    const [first, last] = this.visible();
    c.save();
    c.beginPath();
    c.rect(LABELS, AXIS, this.body, this.tall - AXIS);
    c.clip();
    this.drawLanes(first, last);
    for (const [begin, end] of this.catalogue.unheard) this.drawUnknown(level, first, last, begin, end);
    this.drawTiles(level, first, last);
    this.drawSlices(level, first, last);
    this.drawMarks(first, last);
    c.restore();
    this.drawLabels(first, last);
    this.drawAxis();
  }
  visible() {
    const top = this.scroller.scrollTop;
    const bottom = top + this.tall - AXIS;
    let first = this.places.findIndex((place) => place.y + place.height >= top);
    if (first < 0) first = this.places.length;
    let last = first;
    while (last < this.places.length && this.places[last].y < bottom) last++;
    return [first, last];
  }
  y(lane) {
    return AXIS + this.places[lane].y - this.scroller.scrollTop;
  }

  drawLanes(first, last) {
    const c = this.context;
    for (let lane = first; lane < last; lane++) {
      c.fillStyle = lane === this.lane ? this.colours.faint : this.colours.lane;
      c.fillRect(LABELS, this.y(lane), this.body, this.places[lane].height);
    }
  }
  // Nobody listened to the rates then; a moment's are asked for.
  drawUnknown(level, first, last, begin, end) {
    const { context: c, catalogue, colours } = this;
    const left = Math.max(this.x(begin), LABELS);
    const right = Math.min(this.x(end), this.width);
    if (right <= left || this.tiles.span(level) <= catalogue.moment_ns) return;
    const text = catalogue.full ? "rates not known: zoom in to ask for a moment's" : "rates not known";
    c.font = SMALL;
    c.textBaseline = "middle";
    for (let lane = first; lane < last; lane++) {
      if (catalogue.lanes[lane].kind !== "host") continue;
      const { height } = this.places[lane];
      c.fillStyle = colours.line;
      c.globalAlpha = 0.5;
      c.fillRect(left, this.y(lane), right - left, height);
      c.globalAlpha = 1;
      if (right - left < 280) continue;
      c.fillStyle = colours.calm;
      c.fillText(text, left + 8, this.y(lane) + height / 2);
    }
  }
  drawTiles(level, first, last) {
    const { context: c, ratio, tiles } = this;
    const span = tiles.span(level);
    const from = Math.floor(this.view.begin / span);
    const to = Math.floor((this.view.begin + this.view.span) / span);
    const wanted = [];
    let whole = true;
    for (let block = Math.floor(first / tiles.block); block * tiles.block < last; block++) {
      const lanes = tiles.lanes(block);
      const places = strips(lanes, ratio);
      for (let index = from; index <= to; index++) {
        wanted.push([level, index, block]);
        const found = tiles.nearest(level, index, block);
        whole &&= found !== null;
        const picture = found && tiles.picture(found[0], ratio, this.colours);
        if (!picture) continue;
        const x = this.x(index * span);
        const width = (span / this.view.span) * this.body;
        for (let at = Math.max(0, first - block * tiles.block); at < lanes.length && block * tiles.block + at < last; at++)
          c.drawImage(picture, found[1] * tiles.bins, places[at].y, found[2] * tiles.bins, places[at].height,
            x, this.y(block * tiles.block + at), width, this.places[block * tiles.block + at].height);
      }
    }
    tiles.want(wanted);
    if (whole && !this.whole) performance.mark("netmon-first-picture");
    this.whole ||= whole;
  }
  drawSlices(level, first, last) {
    const c = this.context;
    const end = this.view.begin + this.view.span;
    c.font = SMALL;
    c.textBaseline = "middle";
    for (let lane = first; lane < last; lane++) {
      if (this.catalogue.lanes[lane].kind === "host") continue;
      const y = this.y(lane);
      const { height } = this.places[lane];
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
  drawMarks(first, last) {
    const c = this.context;
    const bottom = this.tall;
    const before = new Map(); // by lane, where the last flag is
    for (const verdict of this.verdicts) {
      const x = this.x(verdict.at);
      const lane = this.byJob.get(verdict.job);
      if (lane === undefined || x < LABELS - 20 || x > this.width + 20) continue;
      const y = this.y(lane);
      let end = lane + 1;
      while (end < this.places.length && this.catalogue.lanes[end].kind !== "job" && this.catalogue.lanes[end].job) end++;
      c.fillStyle = verdict.network ? this.colours.bad : this.colours.calm;
      const crowded = x - (before.get(lane) ?? -Infinity) < 17;
      if (crowded) {
        if (lane >= first && lane < last) c.fillRect(x, y, 2, 5);
        continue;
      }
      before.set(lane, x);
      c.globalAlpha = 0.45;
      c.fillRect(x - 0.5, y, 1, Math.min(bottom, this.y(end - 1) + this.places[end - 1].height) - y);
      c.globalAlpha = 1;
      if (lane < first || lane >= last) continue;
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
    if (this.selected) {
      const { lane, bounds } = this.selected;
      c.strokeStyle = this.colours.accent;
      c.lineWidth = 2;
      const x = this.x(bounds[0]);
      c.strokeRect(x, this.y(lane) - 1, Math.max(2, this.x(bounds[5]) - x), this.places[lane].height + 2);
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
  drawLabels(first, last) {
    const { context: c, colours } = this;
    c.fillStyle = colours.ground;
    c.fillRect(0, AXIS, LABELS - 1, this.tall);
    c.textBaseline = "middle";
    for (let at = first; at < last; at++) {
      const lane = this.catalogue.lanes[at];
      const y = this.y(at) + this.places[at].height / 2;
      c.font = lane.kind === "job" ? `bold ${FONT}` : lane.kind === "rank" ? SMALL : FONT;
      c.fillStyle = lane.kind === "rank" ? colours.calm : colours.ink;
      const text = lane.kind === "job" ? lane.job.name : lane.kind === "rank" ? `rank ${lane.rank}` : lane.host;
      c.fillText(cut(c, text, LABELS - (lane.kind === "host" ? 70 : 18)), lane.kind === "job" ? 8 : 16, lane.kind === "host" ? y - 7 : y);
      if (lane.kind !== "host") continue;
      c.font = SMALL;
      c.fillStyle = colours.calm;
      c.fillText(lane.capacity ? rate(lane.capacity) : `≤ ${rate(this.tiles.scale(lane))}`, 16, y + 8);
      c.textAlign = "right";
      c.fillText("tx ↑", LABELS - 8, y - 10);
      c.fillText("rx ↓", LABELS - 8, y + 11);
      c.textAlign = "left";
    }
    if (this.lane >= first && this.lane < last) {
      c.fillStyle = colours.accent;
      c.fillRect(0, this.y(this.lane), 3, this.places[this.lane].height);
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
    const shift = Number(view.origin % BigInt(Math.round(step))); // marks are at whole minutes of the day
    for (let at = Math.ceil((view.begin + shift) / step) * step - shift; at < view.begin + view.span; at += step) {
      const x = this.x(at);
      if (x < LABELS) continue;
      c.fillStyle = colours.line;
      c.fillRect(x, 0, 1, AXIS);
      c.fillStyle = colours.ink;
      c.fillText(clock(view.origin + BigInt(Math.round(at)), step), x + 4, AXIS / 2);
    }
    c.fillStyle = colours.ground;
    c.fillRect(0, 0, LABELS, AXIS - 1);
    c.fillStyle = colours.calm;
    c.fillText(`${day(view.origin + BigInt(Math.round(view.begin)))}, UTC`, 8, AXIS / 2);
  }
}

function cut(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let shown = text;
  while (shown.length > 3 && context.measureText(`${shown}…`).width > room) shown = shown.slice(0, -1);
  return `${shown}…`;
}
