// SPDX-License-Identifier: Apache-2.0
// Mouse, wheel and keys on the timeline.

import { AXIS, LABELS } from "./timeline.js";

const KEYS = { w: 0.75, "+": 0.75, "=": 0.75, s: 1 / 0.75, "-": 1 / 0.75 };

// acts: select(slice), flows(lane), hover(x, y), verdict(step), slowest(), and the buttons' names.
export function listen(timeline, acts) {
  const { canvas, view, scroller } = timeline;
  let drag = null;

  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 16 : 1;
    const dx = event.deltaX * lines;
    const dy = event.deltaY * lines;
    const x = event.offsetX;
    if (x < LABELS) scroller.scrollTop += dy;
    else if (event.shiftKey || Math.abs(dx) > Math.abs(dy)) view.pan((dx || dy) / timeline.body);
    else view.zoom(Math.exp(Math.max(-240, Math.min(240, dy)) * 0.0025), (x - LABELS) / timeline.body);
    timeline.redraw();
  }, { passive: false });

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    drag = { x: event.offsetX, y: event.offsetY, begin: view.toBegin, top: scroller.scrollTop, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return acts.hover(event.offsetX, event.offsetY);
    const [dx, dy] = [event.offsetX - drag.x, event.offsetY - drag.y];
    drag.moved ||= Math.abs(dx) + Math.abs(dy) > 4;
    if (!drag.moved) return;
    acts.hover(-1, -1);
    if (Math.abs(dx) > 2) view.follow = false;
    view.set(drag.begin - (dx / timeline.body) * view.toSpan, view.toSpan);
    view.jump();
    scroller.scrollTop = drag.top - dy;
    acts.moved();
    timeline.redraw();
  });
  canvas.addEventListener("pointerup", (event) => {
    const click = drag && !drag.moved;
    drag = null;
    if (click) acts.click(event.offsetX, event.offsetY);
  });
  canvas.addEventListener("pointerleave", () => acts.hover(-1, -1));

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, dialog, [role=tablist]")) return;
    const onCanvas = event.target === canvas || event.target === document.body;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (key in KEYS) view.zoom(KEYS[key], pointer(timeline));
    else if (key === "a" || key === "d") view.pan(key === "a" ? -0.15 : 0.15);
    else if (key === "f") acts.fit();
    else if (key === "l") acts.follow();
    else if (key === "c") acts.link();
    else if (key === "t") acts.theme();
    else if (key === "?") acts.help();
    else if (key === "[" || key === "]") acts.verdict(key === "[" ? -1 : 1);
    else if (key === "/") acts.slowest();
    else if (onCanvas && key === "ArrowUp") acts.lane(-1);
    else if (onCanvas && key === "ArrowDown") acts.lane(1);
    else if (onCanvas && key === "ArrowLeft") acts.step(-1);
    else if (onCanvas && key === "ArrowRight") acts.step(1);
    else if (onCanvas && key === "PageUp") scroller.scrollTop -= timeline.tall - AXIS;
    else if (onCanvas && key === "PageDown") scroller.scrollTop += timeline.tall - AXIS;
    else if (event.target === canvas && key === "Enter") acts.explain();
    else return;
    event.preventDefault();
    timeline.redraw();
  });
}

// Where to zoom: at the mouse if it is over the timeline.
const pointer = (timeline) => (timeline.hover === null ? 0.5 : (timeline.hover - LABELS) / timeline.body);
