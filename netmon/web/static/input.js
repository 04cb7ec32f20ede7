// SPDX-License-Identifier: Apache-2.0
// Mouse, wheel, fingers and keys on the timeline.

import { AXIS, LABELS } from "./timeline.js";

const KEYS = { w: 0.75, "+": 0.75, "=": 0.75, s: 1 / 0.75, "-": 1 / 0.75 };

// acts: hover(x, y), click(x, y), measure(begin, end, done), verdict(step), slowest(), and the buttons' names.
export function listen(timeline, acts) {
  const { canvas, view, scroller } = timeline;
  const fingers = new Map(); // by pointer, [x, y]
  let drag = null;
  let pinch = null;

  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 16 : 1;
    const dx = event.deltaX * lines;
    const dy = event.deltaY * lines;
    const x = event.offsetX;
    if (x < LABELS) scroller.scrollTop += dy;
    else if (event.shiftKey || Math.abs(dx) > Math.abs(dy)) view.pan((dx || dy) / timeline.body);
    else view.zoom(Math.exp(Math.max(-240, Math.min(240, dy)) * (event.ctrlKey ? 0.01 : 0.0025)), (x - LABELS) / timeline.body);
    timeline.redraw();
  }, { passive: false });

  const spread = () => {
    const [[ax], [bx]] = [...fingers.values()];
    return { middle: (ax + bx) / 2, apart: Math.max(Math.abs(ax - bx), 20) };
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    fingers.set(event.pointerId, [event.offsetX, event.offsetY]);
    canvas.setPointerCapture(event.pointerId);
    if (fingers.size === 2) {
      const { middle, apart } = spread();
      pinch = { apart, span: view.toSpan, time: timeline.time(middle) };
      drag = null;
    } else drag = { x: event.offsetX, y: event.offsetY, begin: view.toBegin, top: scroller.scrollTop, moved: false, measures: event.shiftKey && event.offsetX > LABELS };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (fingers.has(event.pointerId)) fingers.set(event.pointerId, [event.offsetX, event.offsetY]);
    if (pinch && fingers.size === 2) {
      const { middle, apart } = spread();
      const span = (pinch.span * pinch.apart) / apart;
      view.follow = false;
      view.set(pinch.time - ((middle - LABELS) / timeline.body) * span, span);
      view.jump();
      acts.moved();
      return timeline.redraw();
    }
    if (!drag) return acts.hover(event.offsetX, event.offsetY);
    const [dx, dy] = [event.offsetX - drag.x, event.offsetY - drag.y];
    drag.moved ||= Math.abs(dx) + Math.abs(dy) > 4;
    if (!drag.moved) return;
    acts.hover(-1, -1);
    if (drag.measures) return acts.measure(timeline.time(drag.x), timeline.time(Math.max(event.offsetX, LABELS)), drag.y, false);
    if (Math.abs(dx) > 2) view.follow = false;
    view.set(drag.begin - (dx / timeline.body) * view.toSpan, view.toSpan);
    view.jump();
    scroller.scrollTop = drag.top - dy;
    acts.moved();
    timeline.redraw();
  });
  const up = (event) => {
    fingers.delete(event.pointerId);
    if (fingers.size < 2) pinch = null;
    const ended = drag;
    drag = null;
    if (!ended || event.type !== "pointerup") return;
    if (ended.measures && ended.moved) acts.measure(timeline.time(ended.x), timeline.time(Math.max(event.offsetX, LABELS)), ended.y, true);
    else if (!ended.moved) acts.click(event.offsetX, event.offsetY);
  };
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", up);
  canvas.addEventListener("pointerleave", () => acts.hover(-1, -1));

  // Keys work wherever the focus is, but where it stands on something that takes them itself.
  document.addEventListener("keydown", (event) => {
    const within = (what) => event.target.closest?.(what);
    if (event.ctrlKey || event.metaKey || event.altKey || within("input, select, dialog")) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const tabs = within("[role=tablist]");
    const scrolls = within("[role=tabpanel]");
    const presses = within("button, a, summary") && !tabs;
    if (key in KEYS) view.zoom(KEYS[key], pointer(timeline));
    else if (key === "a" || key === "d") view.pan(key === "a" ? -0.15 : 0.15);
    else if (key === "f") acts.fit();
    else if (key === "l") acts.follow();
    else if (key === "c") acts.link();
    else if (key === "t") acts.theme();
    else if (key === "g") acts.search();
    else if (key === "?") acts.help();
    else if (key === "[" || key === "]") acts.verdict(key === "[" ? -1 : 1);
    else if (key === "/") acts.slowest();
    else if (key === "Escape") acts.leave();
    else if (key === "Enter" && !presses) acts.explain();
    else if (key === " " && !presses && !tabs && !scrolls) acts.toggle();
    else if (!scrolls && key === "ArrowUp") acts.lane(-1);
    else if (!scrolls && key === "ArrowDown") acts.lane(1);
    else if (!tabs && key === "ArrowLeft") acts.step(-1);
    else if (!tabs && key === "ArrowRight") acts.step(1);
    else if (!scrolls && key === "PageUp") scroller.scrollTop -= timeline.tall - AXIS;
    else if (!scrolls && key === "PageDown") scroller.scrollTop += timeline.tall - AXIS;
    else return;
    event.preventDefault();
    timeline.redraw();
  });
}

// Where to zoom: at the mouse if it is over the timeline.
const pointer = (timeline) => (timeline.hover === null ? 0.5 : (timeline.hover - LABELS) / timeline.body);
