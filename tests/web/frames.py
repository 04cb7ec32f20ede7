# SPDX-License-Identifier: Apache-2.0
"""How smoothly the page pans: frames a second in Chromium over an hour of a cluster that never was, as JSON.

python tests/web/frames.py 500

draw_ms is the script's own time of a frame, cpu_ms that of all of the browser's processes, without a GPU also of the
drawing: they tell what a frame costs where other programs take the CPUs.
"""

import json
import sys
from typing import Any

from browser import looking, settled, started
from synthetic_source import Synthetic, serving

PAN = """async ([seconds, part]) => {
  const { timeline, view } = netmonPage;
  const times = [];
  const { draw } = Object.getPrototypeOf(timeline);
  let drawn = 0;
  timeline.draw = function () {
    const begun = performance.now();
    draw.call(this);
    drawn += performance.now() - begun;
  };
  for (let last = performance.now(), end = last + seconds * 1000; last < end; ) {
    view.set(view.toBegin + part * view.toSpan, view.toSpan);
    view.jump();
    timeline.scroller.scrollTop += 3;
    timeline.redraw();
    const now = await new Promise(requestAnimationFrame);
    times.push(now - last);
    last = now;
  }
  delete timeline.draw;
  times.sort((a, b) => a - b);
  const at = (part) => times[Math.floor(times.length * part)];
  const frames = times.length;
  return { frames, frames_per_s: frames / seconds, median_ms: at(0.5), p99_ms: at(0.99), draw_ms: drawn / frames };
}"""
FIRST = "() => performance.getEntriesByName('netmon-first-picture')[0].startTime"


def measure(hosts: int) -> dict[str, Any]:
    """First picture (ms after the address was given), and panning at an hour, a minute and a second."""
    found: dict[str, Any] = {"hosts": hosts, "synthetic": True}
    with serving(Synthetic(hosts)) as address, started() as browser:
        with looking(browser, address, size=(1440, 900)) as page:
            settled(page)
            found["browser"] = browser.version
            found["cold_first_picture_ms"] = page.evaluate(FIRST)
        with looking(browser, address, size=(1440, 900)) as page:
            settled(page)
            found["first_picture_ms"] = page.evaluate(FIRST)
            for name, span in (("hour", 3.6e12), ("minute", 60e9), ("second", 1e9)):
                page.evaluate(
                    "(span) => (netmonPage.view.show(1.8e12, 1.8e12 + span, 1), netmonPage.timeline.redraw())", span
                )
                settled(page)
                page.wait_for_timeout(500)
                before = cpu_s(browser)
                own = found[name] = page.evaluate(PAN, [5, 0.004])
                own["cpu_ms"] = (cpu_s(browser) - before) * 1e3 / own["frames"]
    return found


def cpu_s(browser: Any) -> float:
    """CPU time of all processes of the browser."""
    told = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")
    return float(sum(process["cpuTime"] for process in told["processInfo"]))


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1])), indent=1))
