// SPDX-License-Identifier: Apache-2.0
// What a host's processes carried, for hosts that are opened: of the time that is shown. ≈: estimated, of a part of its rows.

import { columns } from "./data.js";

const AGAIN_MS = 2000; // while it is live; of a long time less often: ten times what an answer takes

export class Processes {
  // changed(): there is something else to show.
  constructor(changed) {
    Object.assign(this, { changed, known: new Map() }); // by host
  }

  // lanes: of the opened hosts.
  update(catalogue, lanes, view, live) {
    const hosts = new Set(lanes.map((lane) => lane.host));
    for (const host of this.known.keys()) if (!hosts.has(host)) this.known.delete(host);
    const [begin, end] = [Math.floor(view.toBegin), Math.ceil(view.toBegin + view.toSpan)];
    for (const host of hosts) {
      const one = this.known.get(host) ?? { names: ["reading …"], rate_bps: new Float32Array(0), took: 0 };
      this.known.set(host, one);
      const same = one.range === `${begin}/${end}`;
      if (!catalogue.full || one.busy || same || (live && view.follow && performance.now() - one.requested < Math.max(AGAIN_MS, 10 * one.took))) continue;
      Object.assign(one, { busy: true, requested: performance.now(), range: `${begin}/${end}` });
      this.read(catalogue, host, one, begin, end);
    }
  }
  async read(catalogue, host, one, begin, end) {
    const at = (ns) => catalogue.origin + BigInt(ns);
    try {
      const reply = await columns(`/api/processes?host=${encodeURIComponent(host)}&begin_ns=${at(begin)}&end_ns=${at(end)}`);
      const { names, rate_bps, bins, width_ns, read_ns } = reply;
      const called = read_ns < end - begin ? names.map((name) => `≈ ${name}`) : names;
      Object.assign(one, { names: called.length ? called : ["nothing was carried"], rate_bps, bins, width_ns, begin });
    } catch (error) {
      Object.assign(one, { names: [error.message], rate_bps: new Float32Array(0) });
    } finally {
      Object.assign(one, { busy: false, took: performance.now() - one.requested });
      this.changed();
    }
  }
}
