// SPDX-License-Identifier: Apache-2.0
// What the server tells: JSON, and columns as typed arrays without a copy.

const ARRAYS = { f32: Float32Array, f64: Float64Array, u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, i32: Int32Array };

export class Refused extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

async function ask(path, signal) {
  const response = await fetch(path, { signal, credentials: "same-origin" });
  if (response.ok) return response;
  if (response.status === 401) location.assign("/login");
  const reply = await response.json().catch(() => ({}));
  throw new Refused(response.status, reply.error ?? `the server answers ${response.status}`);
}

export const json = async (path, signal) => (await ask(path, signal)).json();

export async function columns(path, signal) {
  const buffer = await (await ask(path, signal)).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  for (const [name, [type, offset, count]] of Object.entries(head.columns))
    head[name] = new ARRAYS[type](buffer, 4 + length + offset, count);
  return head;
}

// The catalogue with its lanes as objects; times in ns from its origin, as numbers that are exact for a hundred days.
export function readCatalogue(reply) {
  const origin = BigInt(reply.origin_ns);
  const { kind, job, rank, host } = reply.lanes;
  const lanes = kind.map((one, at) => ({
    at, kind: one, rank: rank[at],
    job: job[at] < 0 ? null : reply.jobs[job[at]],
    host: host[at] < 0 ? "" : reply.hosts[host[at]],
    capacity: host[at] < 0 ? 0 : reply.capacity_bps[host[at]],
  }));
  const since = (ns) => Number(BigInt(ns) - origin);
  const unheard = reply.unheard_ns.map((times) => times.map(since));
  return { ...reply, origin, lanes, begin: since(reply.begin_ns), end: since(reply.end_ns), unheard };
}
