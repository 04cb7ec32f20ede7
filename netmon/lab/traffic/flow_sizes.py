# SPDX-License-Identifier: Apache-2.0
"""Flow sizes drawn from a published distribution."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

WEB_SEARCH = Path(__file__).with_name("web_search.csv")
PUBLISHED_RATE_BPS = 10_000_000_000


class FlowSizes:
    """A cumulative distribution of flow sizes, linear between its points, every size multiplied by `scale`."""

    def __init__(self, path: Path = WEB_SEARCH, scale: float = 1.0) -> None:
        """Columns of the file: bytes, probability; lines that begin with # are its source."""
        self._sizes, self._probabilities = np.loadtxt(path, delimiter=",", skiprows=5, unpack=True)
        self._sizes *= scale

    @property
    def mean(self) -> float:
        """Mean flow size in bytes."""
        middles = (self._sizes[1:] + self._sizes[:-1]) / 2
        return float(np.sum(middles * np.diff(self._probabilities)))

    def draw(self, generator: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
        """`count` flow sizes in bytes, each at least 1."""
        sizes = np.interp(generator.random(count), self._probabilities, self._sizes)
        whole: npt.NDArray[np.int64] = np.maximum(sizes.round().astype(np.int64), 1)
        return whole
