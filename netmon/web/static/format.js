// SPDX-License-Identifier: Apache-2.0
// Quantities as people read them, three significant digits, units always.

function scaled(value, units) {
  const size = Math.abs(value);
  const [scale, unit] = units.find(([least]) => size >= least) ?? units[units.length - 1];
  const number = value / scale;
  const digits = Number.isInteger(number) && Math.abs(number) < 1000 ? 0 : Math.max(0, 3 - String(Math.trunc(Math.abs(number))).length);
  return `${number.toFixed(digits)} ${unit}`;
}

export const duration = (ns) => scaled(ns, [[3.6e12, "h"], [60e9, "min"], [1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]]);
export const rate = (bps) => scaled(bps, [[1e9, "Gbit/s"], [1e6, "Mbit/s"], [1e3, "kbit/s"], [1, "bit/s"]]);
export const bytes = (count) => scaled(count, [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]]);

// A moment of the UTC epoch (BigInt, ns), as far as a step of so many ns tells it apart.
export function clock(ns, stepNs = 1e9) {
  const digits = stepNs >= 1e9 ? 0 : stepNs >= 1e6 ? 3 : stepNs >= 1e3 ? 6 : 9;
  const seconds = ns / 1_000_000_000n;
  const text = new Date(Number(seconds) * 1000).toISOString().slice(11, 19);
  const part = String(ns % 1_000_000_000n).padStart(9, "0").slice(0, digits);
  return digits ? `${text}.${part}` : text;
}

export const day = (ns) => new Date(Number(ns / 1_000_000n)).toISOString().slice(0, 10);
export const iso = (ns) => `${day(ns)}T${clock(ns, 1)}Z`;

// The reverse of iso, also of a time with fewer digits; null: it is none.
export function fromIso(text) {
  const match = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z?$/.exec(text);
  const ms = match ? Date.parse(`${match[1]}Z`) : NaN;
  return Number.isNaN(ms) ? null : BigInt(ms) * 1_000_000n + BigInt((match[2] ?? "").padEnd(9, "0") || 0);
}

// The viewer's own time of day, beside UTC; with the day where that is not today.
export function local(ns, stepNs = 1e9) {
  const date = new Date(Number(ns / 1_000_000n));
  const two = (number) => String(number).padStart(2, "0");
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  const part = stepNs >= 1e9 ? "" : `.${String(date.getMilliseconds()).padStart(3, "0")}`;
  return date.toDateString() === new Date().toDateString() ? time + part : `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}${part}`;
}
export const zone = () => {
  const minutes = -new Date().getTimezoneOffset();
  const size = Math.abs(minutes);
  return minutes ? `UTC${minutes < 0 ? "−" : "+"}${Math.floor(size / 60)}${size % 60 ? `:${String(size % 60).padStart(2, "0")}` : ""}` : "UTC";
};
// Both, where they differ.
export const both = (ns, stepNs) => `${zone() === "UTC" ? "" : `${local(ns, stepNs)} here, `}${clock(ns, stepNs)} UTC`;
