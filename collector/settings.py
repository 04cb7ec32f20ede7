# SPDX-License-Identifier: Apache-2.0
"""What the user may set."""

from dataclasses import dataclass

from collector.dataset.retention import Keep
from collector.host_limiter import DEFAULT_RATES, Rates

AT_ONCE = frozenset(
    {"flush_ns", "full_on", "full_burst", "full_rest_ns", "full_rows_per_hour", "keep", "allowance"},
)
"""What may change while the collector works: whoever uses it reads it each time."""


@dataclass
class Settings:
    """How the collector works; the defaults are those of the command line."""

    settle_ns: int = 1_000_000_000  # a row waits so long for its flow's owner and its iteration's marks
    flush_ns: int = 2_000_000_000
    share_window_ns: int = 10_000_000
    share_threshold: float = 0.01  # of a link's capacity
    hold_windows: int = 5  # a view's class changes when so many share windows in a row say so; rows are exact
    parameters: int = 0  # model size for jobs that do not report theirs
    full_on: tuple[str, ...] = ("slow",)  # what makes it store full resolution: "slow", "burst", "class"
    full_burst: float = 2.0  # a burst's peak, × the link's capacity
    full_rest_ns: int = 30_000_000_000  # after one, until the next of the same kind and job or host
    full_rows_per_hour: int = 20_000_000  # of all hosts
    durability: str = "power"  # what stored rows outlive: see netmon.durability
    verdicts: bool = True  # iterations that stand out are judged
    keep: tuple[Keep, ...] = ()  # what the dataset keeps; of tables that are not named: everything
    allowance: Rates = DEFAULT_RATES  # what one host may send in a second

    def adjust(self, other: "Settings") -> None:
        """Take over what may change while the collector works."""
        for name in AT_ONCE:
            setattr(self, name, getattr(other, name))
