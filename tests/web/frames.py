# SPDX-License-Identifier: Apache-2.0
"""How smoothly the page pans: frames a second in Chromium over an hour of a cluster that never was, as JSON.

python tests/web/frames.py 500
"""

import json
import sys
from typing import Any

from browser import looking, settled, started
from synthetic_source import Synthetic, serving

PAN = """async ([seconds, part]) => {
  const { timeline, view } = netmonPage;
  const times = [];
  for (let last = performance.now(), end = last + seconds * 1000; last < end; ) {
    view.set(view.toBegin + part * view.toSpan, view.toSpan);
    view.jump();
    timeline.scroller.scrollTop += 3;
    timeline.redraw();
    const now = await new Promise(requestAnimationFrame);
    times.push(now - last);
    last = now;
  }
  times.sort((a, b) => a - b);
  const at = (part) => times[Math.floor(times.length * part)];
  return { frames_per_s: times.length / seconds, median_ms: at(0.5), p99_ms: at(0.99) };
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
                found[name] = page.evaluate(PAN, [5, 0.004])
    return found


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1])), indent=1))
