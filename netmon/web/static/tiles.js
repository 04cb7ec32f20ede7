// SPDX-License-Identifier: Apache-2.0
// The pieces of the timeline that are known, and those that are requested: what is visible first, a few at a time.

import { columns } from "./data.js";
import { paintTile } from "./paint.js";

const AT_ONCE = 6;
const MOST = 260;
const AGAIN_MS = 1000;
const FAILED_MS = 2000;
const LATE_MS = 400;

export class Tiles {
  constructor(catalogue, changed, stale) {
    Object.assign(this, { catalogue, changed, stale });
    this.known = new Map(); // the one that was used last is last
    this.coming = new Map();
    this.wanted = [];
    this.peaks = new Map(); // by host, where its capacity is not known
    const { bins, finest_ns: finest, block } = catalogue.tile;
    Object.assign(this, { bins, finest, block, blocks: Math.ceil(catalogue.lanes.length / block) });
  }

  span(level) {
    return this.bins * this.finest * 2 ** level;
  }
  level(nsPerPixel) {
    return Math.min(Math.max(Math.floor(Math.log2(nsPerPixel / this.finest)), 0), this.catalogue.tile.most_level);
  }
  lanes(block) {
    return this.catalogue.lanes.slice(block * this.block, (block + 1) * this.block);
  }

  get(level, index, block) {
    const key = `${level}/${index}/${block}`;
    const tile = this.known.get(key);
    if (tile) {
      this.known.delete(key);
      this.known.set(key, tile);
    }
    return tile;
  }
  // The same, or what is known of its time more coarsely: [tile, part of it where it begins, part that it is of it].
  nearest(level, index, block) {
    for (let up = 0; up <= 8 && level + up <= this.catalogue.tile.most_level; up++) {
      const tile = this.get(level + up, Math.floor(index / 2 ** up), block);
      if (tile) return [tile, (index / 2 ** up) % 1 + (index < 0 && (index / 2 ** up) % 1 ? 1 : 0), 1 / 2 ** up];
    }
    return null;
  }

  // What is visible now; anything else that is on its way is called off.
  want(pieces) {
    const now = performance.now();
    const keys = new Set();
    this.wanted = pieces.filter(([level, index, block]) => {
      const key = `${level}/${index}/${block}`;
      keys.add(key);
      const tile = this.known.get(key);
      return !this.coming.has(key) && (!tile || (!tile.final && now - tile.requested > AGAIN_MS));
    });
    for (const [key, call] of this.coming) if (!keys.has(key)) call.abort();
    this.next();
  }
  get busy() {
    return this.wanted.length + this.coming.size > 0;
  }

  // Whether what is visible has been on its way for long.
  get late() {
    const now = performance.now();
    return [...this.coming].some(([key, call]) => !this.known.has(key) && now - call.begun > LATE_MS);
  }

  next() {
    if (performance.now() < (this.restUntil ?? 0)) return;
    while (this.coming.size < AT_ONCE && this.wanted.length) this.fetch(...this.wanted.shift());
  }
  async fetch(level, index, block) {
    const key = `${level}/${index}/${block}`;
    const call = new AbortController();
    call.begun = performance.now();
    this.coming.set(key, call);
    try {
      const path = `/api/tile?generation=${this.catalogue.generation}&level=${level}&index=${index}&block=${block}`;
      const tile = await columns(path, call.signal);
      tile.requested = performance.now();
      this.keep(key, tile);
      this.changed();
    } catch (error) {
      if (error.status === 409) this.stale();
      else if (error.name !== "AbortError") this.restUntil = performance.now() + FAILED_MS; // gone: it is requested again
    } finally {
      this.coming.delete(key);
      this.next();
    }
  }
  keep(key, tile) {
    for (const [at, lane] of this.lanes(tile.block).entries()) {
      if (lane.kind !== "host" || lane.capacity) continue;
      for (let row = 0; row < (tile.rate_lane ?? []).length; row++)
        if (tile.rate_lane[row] === at)
          for (const value of tile.rate_bps.subarray(row * this.bins, (row + 1) * this.bins))
            if (value > (this.peaks.get(lane.host) ?? 0)) this.peaks.set(lane.host, value);
    }
    this.known.delete(key);
    this.known.set(key, tile);
    while (this.known.size > MOST) this.known.delete(this.known.keys().next().value);
  }
  scale(lane) {
    return lane.capacity || this.peaks.get(lane.host) || 1e9;
  }

  picture(tile, ratio, colours) {
    if (tile.picture === undefined || tile.ratio !== ratio || tile.colours !== colours) {
      Object.assign(tile, { ratio, colours });
      tile.picture = paintTile(tile, this.lanes(tile.block), this.bins, ratio, colours, (lane) => this.scale(lane));
    }
    return tile.picture;
  }

  // The iterations of a lane that are known one by one and overlap a time, at this level, by time.
  slices(level, lane, begin, end) {
    const found = [];
    const block = Math.floor(lane / this.block);
    const span = this.span(level);
    let last = -Infinity; // one that two tiles show is reported once
    for (let index = Math.floor(begin / span); index * span < end; index++) {
      const tile = this.known.get(`${level}/${index}/${block}`);
      for (const slice of tile?.slice_lane ? this.byLane(tile).get(lane - block * this.block) ?? [] : []) {
        if (slice.bounds[0] >= end || slice.bounds[5] <= begin || slice.bounds[0] <= last) continue;
        last = slice.bounds[0];
        found.push(slice);
      }
    }
    return found;
  }
  byLane(tile) {
    if (!tile.slices) {
      tile.slices = new Map();
      const shift = tile.index * this.span(tile.level);
      tile.slice_lane.forEach((at, row) => {
        if (!tile.slices.has(at)) tile.slices.set(at, []);
        const bounds = Array.from(tile.slice_ns.subarray(row * 6, row * 6 + 6), (ns) => ns + shift);
        const lane = tile.block * this.block + at;
        tile.slices.get(at).push({ lane, number: tile.slice_number[row], bounds, known: tile.slice_known[row] === 1 });
      });
    }
    return tile.slices;
  }
}
