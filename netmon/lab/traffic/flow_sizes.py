# SPDX-License-Identifier: Apache-2.0
"""Flow sizes drawn from a published distribution."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

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
        """Mean flow size in bytes."""
        middles = (self._sizes[1:] + self._sizes[:-1]) / 2
        return float(np.sum(middles * np.diff(self._probabilities)))

    def draw(self, generator: np.random.Generator, shape: int | tuple[int, ...]) -> npt.NDArray[np.int64]:
        """Flow sizes in bytes, each at least 1."""
        sizes = np.interp(generator.random(shape), self._probabilities, self._sizes)
        whole: npt.NDArray[np.int64] = np.maximum(sizes.round().astype(np.int64), 1)
        return whole
