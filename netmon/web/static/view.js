// SPDX-License-Identifier: Apache-2.0
// Which time is shown, and the link that names it. Times in ns from the catalogue's origin.

import { fromIso, iso } from "./format.js";

const LEAST = 10_000 * 20; // ns: twenty buckets of 10 µs
const MOST = 6 * 3.6e12;
const EASE_MS = 45;

export class View {
  constructor(catalogue) {
    this.origin = catalogue.origin;
    this.follow = false;
    this.still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.fit(catalogue.begin, catalogue.end);
    this.jump();
  }

  // Where it is going to, and at once.
  set(begin, span) {
    this.toSpan = Math.min(Math.max(span, LEAST), MOST);
    this.toBegin = begin + (span - this.toSpan) / 2;
  }
  jump() {
    this.begin = this.toBegin;
    this.span = this.toSpan;
  }

  fit(begin, end) {
    const span = Math.min(Math.max(end - begin, LEAST), 3.6e12);
    this.set(end - span - 0.02 * span, span * 1.04);
  }
  zoom(factor, at = 0.5) {
    const span = Math.min(Math.max(this.toSpan * factor, LEAST), MOST);
    const begin = this.toBegin + (this.toSpan - span) * (this.follow ? 1 : at);
    this.set(begin, span);
  }
  pan(part) {
    this.follow = false;
    this.set(this.toBegin + part * this.toSpan, this.toSpan);
  }
  show(begin, end, room = 0.6) {
    this.follow = false;
    const span = Math.max((end - begin) / room, LEAST);
    this.set((begin + end - span) / 2, span);
  }
  // Keeps the newest data at the right edge; it has come there by `passed` ns of itself.
  keepUp(end, passed = 0) {
    if (!this.follow) return;
    this.toBegin = end - this.toSpan * 0.985;
    this.begin += passed;
  }

  // A step towards where it goes; false: it is there.
  step(ms) {
    if (this.begin === this.toBegin && this.span === this.toSpan) return false;
    const part = this.still ? 1 : 1 - Math.exp(-ms / EASE_MS);
    this.begin += (this.toBegin - this.begin) * part;
    this.span += (this.toSpan - this.span) * part;
    if (Math.abs(this.toBegin - this.begin) + Math.abs(this.toSpan - this.span) < this.toSpan * 2e-4) this.jump();
    return true;
  }

  // For a link: what follows has neither.
  get moment() {
    return this.follow ? {} : { at: iso(this.origin + BigInt(Math.round(this.toBegin))), span: `${Math.round(this.toSpan)}ns` };
  }
  // Whether a link names a moment; it is shown then.
  open(link) {
    const at = fromIso(link.get("at") ?? "");
    const span = /^(\d+)ns$/.exec(link.get("span") ?? "");
    if (at === null || !span) return false;
    this.follow = false;
    this.set(Number(at - this.origin), Number(span[1]));
    return true;
  }
}
