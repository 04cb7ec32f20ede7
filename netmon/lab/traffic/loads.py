# SPDX-License-Identifier: Apache-2.0
"""Loads: when which flow begins and how large it is, after the two algorithms of the thesis' appendix A.1."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from netmon.records import Table

# --- Flow sizes drawn from a published distribution.

WEB_SEARCH = Path(__file__).with_name("web_search.csv")
DATA_MINING = Path(__file__).with_name("data_mining.csv")
PUBLISHED_RATE_BPS = 10_000_000_000


class FlowSizes:
    """A cumulative distribution of flow sizes, linear between its points, every size multiplied by `scale`.

    The published sizes are of links of PUBLISHED_RATE_BPS: with scale = rate / PUBLISHED_RATE_BPS a flow takes as
    long on a slower link as it took there.
    """

    def __init__(self, path: Path = WEB_SEARCH, scale: float = 1.0) -> None:
        """Columns of the file: bytes, probability; lines that begin with # are its source."""
        _header, *points = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        self._sizes, self._probabilities = np.loadtxt(points, delimiter=",", unpack=True)
        self._sizes *= scale

    @property
    def mean(self) -> float:
        middles = (self._sizes[1:] + self._sizes[:-1]) / 2
        return float(np.sum(middles * np.diff(self._probabilities)))

    def draw(self, generator: np.random.Generator, shape: int | tuple[int, ...]) -> npt.NDArray[np.int64]:
        """Flow sizes in bytes, each at least 1."""
        sizes = np.interp(generator.random(shape), self._probabilities, self._sizes)
        whole: npt.NDArray[np.int64] = np.maximum(sizes.round().astype(np.int64), 1)
        return whole


# --- loads

LOAD = np.dtype([("start_ns", "<i8"), ("size_bytes", "<i8")])
"""One flow: ns from the load's beginning to the flow's, and payload bytes. Rows of a load are in order of time."""

SECOND_NS = 1_000_000_000
INTERVAL_NS = 10_000_000
BURST_NS = 1_000_000
BURST_SHARE = 3 / 10  # of an interval's bytes, in a tenth of its time: 300 % of the load
BURST_FLOWS = 2
FEWEST_FLOWS_BETWEEN = 8
_FLOWS_AT_ONCE = 1000


@dataclass(frozen=True)
class Recipe:
    """What makes a load. The same recipe makes the same load."""

    profile: str  # one of ALGORITHMS
    load_bps: float  # payload
    rate_bps: float  # of the link: flow sizes are scaled by rate_bps / 10 Gbit/s
    seed: int

    @property
    def size_scale(self) -> float:
        """What the published flow sizes are multiplied by."""
        return self.rate_bps / PUBLISHED_RATE_BPS


def endless(recipe: Recipe) -> Iterator[Table]:
    """The load, dtype LOAD, part after part, without end."""
    return ALGORITHMS[recipe.profile](recipe, np.random.default_rng(recipe.seed))


def load(recipe: Recipe, seconds: int) -> Table:
    """The first `seconds` of the load, dtype LOAD, shape (flows,)."""
    parts = []
    for part in endless(recipe):
        parts.append(part[part["start_ns"] < seconds * SECOND_NS])
        if len(parts[-1]) < len(part):
            break
    return np.concatenate(parts)


def consistent(recipe: Recipe, generator: np.random.Generator, distribution: Path = WEB_SEARCH) -> Iterator[Table]:
    """Algorithm 1: flows of the distribution's sizes, each followed by as long a gap as its bytes take at the load.

    So the load is the same over every time that is long against a flow's. (With a Poisson process of such sizes it
    would be more than the link can carry for seconds at a time, and burstier than Algorithm 2.)
    """
    sizes, sent = FlowSizes(distribution, recipe.size_scale), 0
    while True:
        drawn = sizes.draw(generator, _FLOWS_AT_ONCE)
        ends = sent + np.cumsum(drawn)
        yield _rows((ends - drawn) * (8 * SECOND_NS / recipe.load_bps), drawn)
        sent = int(ends[-1])


def consistent_data_mining(recipe: Recipe, generator: np.random.Generator) -> Iterator[Table]:
    """Algorithm 1 with the data-mining sizes."""
    return consistent(recipe, generator, DATA_MINING)


def poisson(recipe: Recipe, generator: np.random.Generator) -> Iterator[Table]:
    """Web-search flows that arrive as a Poisson process, as the literature on flow scheduling has them."""
    sizes, now = FlowSizes(WEB_SEARCH, recipe.size_scale), 0.0
    mean_gap_ns = sizes.mean * 8 * SECOND_NS / recipe.load_bps
    while True:
        arrivals = now + np.cumsum(generator.exponential(mean_gap_ns, _FLOWS_AT_ONCE))
        yield _rows(arrivals, sizes.draw(generator, _FLOWS_AT_ONCE))
        now = float(arrivals[-1])


def burst(recipe: Recipe, generator: np.random.Generator) -> Iterator[Table]:
    """Algorithm 2: each 10 ms begin with 1 ms at 300 % of the load.

    3/10 of an interval's bytes come in that millisecond, as two flows; the rest in at least eight flows over the other
    9 ms. Sizes are drawn from the web-search distribution and the flows of each part scaled together so that every
    interval has exactly its bytes. That makes them smaller than published where eight flows of the mean size
    are more than the load; the thesis leaves open how it met both.
    """
    sizes = FlowSizes(WEB_SEARCH, recipe.size_scale)
    volume = recipe.load_bps / 8 * INTERVAL_NS / SECOND_NS
    between = max(FEWEST_FLOWS_BETWEEN, round((1 - BURST_SHARE) * volume / sizes.mean))
    parts = (
        (BURST_FLOWS, BURST_SHARE * volume, 0, BURST_NS),
        (between, (1 - BURST_SHARE) * volume, BURST_NS, INTERVAL_NS),
    )
    for second in itertools.count():
        begins = second * SECOND_NS + np.arange(0, SECOND_NS, INTERVAL_NS)[:, np.newaxis]
        starts, drawn = [], []
        for flows, share, since, until in parts:
            shape = (len(begins), flows)
            starts.append(begins + generator.uniform(since, until, shape))
            draws = sizes.draw(generator, shape)
            drawn.append(draws * (share / draws.sum(axis=1, keepdims=True)))
        yield _rows(np.concatenate(starts, axis=1).ravel(), np.concatenate(drawn, axis=1).ravel())


def _rows(starts: npt.NDArray[Any], sizes: npt.NDArray[Any]) -> Table:
    rows = np.empty(len(starts), LOAD)
    rows["start_ns"], rows["size_bytes"] = starts, np.maximum(np.round(sizes), 1)
    rows.sort(order="start_ns")
    return rows


ALGORITHMS: dict[str, Callable[[Recipe, np.random.Generator], Iterator[Table]]] = {
    "websearch": consistent,
    "datamining": consistent_data_mining,
    "poisson": poisson,
    "burst": burst,
}
