// SPDX-License-Identifier: Apache-2.0
// Who slows whom, since when, by how much and what to do: a line for each job on top, the incidents beside the timeline.

import { bytes, duration, local, rate } from "./format.js";
import { element, table } from "./panels.js";

// A day stands before the first time only, if the second one is of it, too.
function inWords(line) {
  let day = "";
  return line.map((piece, at) => {
    if (at % 2 === 0) return piece;
    const words = local(BigInt(piece)).split(" ");
    const again = words.length > 1 && words[0] === day;
    if (words.length > 1) day = words[0];
    return again ? words[1] : words.join(" ");
  }).join("");
}

// reply: what the server says of jobs; incidents: by key; act: open(incident).
export function strip(node, reply, incidents, open) {
  const rows = reply.jobs.map((job) => row(job, incidents.get(job.incident), open));
  const well = reply.all - reply.jobs.filter((job) => incidents.has(job.incident)).length;
  const shown = rows.filter((one) => one !== null);
  const text = shown.length
    ? well ? `${well === 1 ? "1 other job is" : `${well.toLocaleString("en")} other jobs are`} well` : ""
    : reply.all === 0 ? "no job has trained yet"
    : reply.all === 1 ? `${reply.jobs[0].name} is well: ${pace(reply.jobs[0])}`
    : `all ${reply.all.toLocaleString("en")} jobs are well`;
  const still = (reply.hangs ?? []).map((line) => element("p", { class: "answer now", role: "alert" }, element("b", {}, inWords(line))));
  const waits = (reply.waits ?? []).map((line) => element("p", { class: "answer" }, inWords(line)));
  shown.unshift(...still, ...waits);
  if (text && !still.length && !waits.length) shown.push(element("p", { class: reply.all ? "well" : "note" }, reply.all ? `✓ ${text}` : text));
  carried(document.getElementById("pairs"), reply.pairs ?? []);
  const key = shown.map((one) => one.textContent + one.className).join("\n");
  if (node.dataset.shown === key) return; // what has the focus keeps it
  node.dataset.shown = key;
  node.replaceChildren(...shown);
}

// What ranks of each job send each other by NCCL. A table stays open when its figures change.
function carried(node, jobs) {
  const known = new Map([...node.children].map((one) => [one.dataset.job, one]));
  const rank = (number) => (number < 0 ? "?" : String(number));
  const drawn = jobs.map((own) => {
    const rows = own.pairs.map((one) => [`${rank(one.rank)} → ${rank(one.peer)}`, one.transport || "not seen", one.interface, bytes(one.bytes) + (one.missed ? " or more" : ""),
      one.bps === null ? "?" : rate(one.bps), one.rdma === null ? "?" : `${Math.round(100 * one.rdma)} %`]);
    const made = known.get(own.job) ?? element("details", { "data-job": own.job }, element("summary"), element("div"));
    made.firstChild.textContent = `${own.job}: ${own.all.toLocaleString("en")} ${own.all === 1 ? "pair" : "pairs"} of ranks over NCCL${own.all > rows.length ? `, ${rows.length} of them` : ""}`;
    made.lastChild.replaceChildren(table(["ranks", "transport", "device", "last 10 s", "while it sends", "by RDMA"], rows, 3));
    return made;
  });
  node.hidden = drawn.length === 0;
  if (drawn.length !== node.children.length || drawn.some((one, at) => one !== node.children[at])) node.replaceChildren(...drawn);
}

const pace = (job) => `last ${duration(job.last_ns)} / usual ${job.baseline_ns ? duration(job.baseline_ns) : "not known"}`;

function row(job, incident, open) {
  if (job.silent_ns > 0) return element("p", { class: "answer was" }, `${job.name}: no step since ${local(BigInt(job.end_ns))}; ${pace(job)}`);
  if (job.not_understood) return element("p", { class: "answer was" }, `${job.name}: this job's steps are not understood`);
  if (!incident) return null;
  const more = job.incidents > 1 ? `, ${duration(job.lost_ns)} in ${job.incidents} incidents` : "";
  return element("button", { class: `answer ${job.ongoing ? "now" : "was"}`, onclick: () => open(incident) },
    element("b", {}, inWords(incident.line)),
    element("span", {}, pace(job) + more),
    element("span", { class: "do" }, `What to do: ${incident.do}`));
}

// steps: the incident that is open shows its steps; openStep(verdict).
export function list(node, reply, catalogue, opened, verdicts, open, openStep) {
  const unclear = catalogue.not_understood.map((line) => element("p", { class: "note" }, line));
  if (!reply.incidents.length)
    return node.replaceChildren(...unclear, element("p", { class: "well" }, "✓ No iteration has stood out so far."),
      element("p", { class: "note" }, "One does that takes 1.2 × its job's usual time."));
  const cards = reply.incidents.map((one) => {
    const own = one.key === opened;
    const card = element("button", { class: `incident${one.network ? " network" : ""}${one.ongoing ? " now" : ""}`, "aria-expanded": String(own), "data-key": one.key, onclick: () => open(one) },
      inWords(one.line), element("small", {}, `What to do: ${one.do}`), element("small", {}, `${one.cause.replaceAll("_", " ")} · confidence ${one.confidence.toFixed(2)}`));
    return own ? element("div", {}, card, steps(one, verdicts, openStep)) : card;
  });
  const rest = reply.all - reply.incidents.length;
  node.replaceChildren(...unclear, ...cards, rest > 0 ? element("p", { class: "note" }, `and ${rest.toLocaleString("en")} before them`) : "");
}

const MOST_STEPS = 100;
function steps(incident, verdicts, openStep) {
  const own = verdicts.filter((one) => one.job === incident.job && one.at > incident.from && one.from < incident.to).toSorted((a, b) => b.excess_ns - a.excess_ns);
  return element("ul", { class: "steps" }, ...own.slice(0, MOST_STEPS).map((one) => element("li", {},
    element("button", { class: "step", "data-at": one.at, onclick: () => openStep(one) }, `${one.iteration}: ${duration(one.duration_ns)}, ${duration(one.excess_ns)} lost`))),
    own.length > MOST_STEPS ? element("li", { class: "note" }, `and ${own.length - MOST_STEPS} that lost less`) : "");
}
