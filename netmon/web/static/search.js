// SPDX-License-Identifier: Apache-2.0
// The search: hosts and jobs by a part of their name, iterations by their number, processes by a part of theirs.

import { json } from "./data.js";
import { duration, local } from "./format.js";
import { element } from "./panels.js";

const MOST = 12;
const WAIT_MS = 150;

// go(found): job, or host, or job and iteration with its times.
export function searching(form, field, list, catalogue, go) {
  let timer = 0;
  let requested = "";
  const choose = (found) => {
    list.hidden = true;
    field.blur();
    go(found);
  };
  const button = (text, found) => element("li", {}, element("button", { type: "button", onclick: () => choose(found) }, text));
  const show = async (text) => {
    requested = text;
    list.hidden = !text;
    if (!text) return;
    const small = text.toLowerCase();
    const { jobs, hosts } = catalogue();
    const rows = [
      ...jobs.filter((one) => one.name.toLowerCase().includes(small)).slice(0, MOST).map((one) => button(`job ${one.name}`, { job: one.name })),
      ...hosts.filter((one) => one.toLowerCase().includes(small)).slice(0, MOST).map((one) => button(`host ${one}`, { host: one }))];
    list.replaceChildren(...rows, element("li", { class: "busy" }, "looking on …"));
    const reply = await json(`/api/find?text=${encodeURIComponent(text)}`).catch(() => ({ steps: [], processes: [] }));
    if (requested !== text) return;
    rows.push(
      ...reply.steps.map((one) => button(`iteration ${one.iteration} of ${one.job} · ${local(BigInt(one.start_ns))} · ${duration(Number(BigInt(one.end_ns) - BigInt(one.start_ns)))}`, one)),
      ...reply.processes.map(([name, user, host]) => button(`process ${name} · ${[user, host].filter(Boolean).join(", ")}`, { host })));
    list.replaceChildren(...(rows.length ? rows : [element("li", { class: "note" }, "nothing is called so")]));
  };
  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => show(field.value.trim()), WAIT_MS);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    list.querySelector("button")?.click();
  });
  form.addEventListener("keydown", (event) => {
    const buttons = [...list.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement);
    if (event.key === "Escape") (list.hidden = true), field.blur();
    else if (event.key === "ArrowDown") buttons[Math.min(at + 1, buttons.length - 1)]?.focus();
    else if (event.key === "ArrowUp") (buttons[at - 1] ?? field).focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  form.addEventListener("focusout", (event) => form.contains(event.relatedTarget) || (list.hidden = true));
}
