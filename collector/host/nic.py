# SPDX-License-Identifier: Apache-2.0
"""Samples of the NICs' own counters on their way to the dataset, and what they say of traffic that no hook sees."""

from collections.abc import Iterator, Sequence

from netmon.records import NicSample

_RDMA = "rdma"


class NicRows:
    """The samples of one session."""

    def __init__(self, host: str) -> None:
        """Begin without samples."""
        self.rows: list[NicSample] = []  # that are not stored yet
        self._host = host
        self._carried: dict[str, int] = {}  # RDMA port → bytes of its counters

    def add(self, samples: Sequence[NicSample], stored: bool) -> list[str]:
        """Take in a batch's samples; stored: the dataset has them already. Returns what viewers should be told."""
        if not stored:
            self.rows += samples
        return list(self._warnings(samples))

    def take(self) -> list[NicSample]:
        """Hand the samples over."""
        rows, self.rows = self.rows, []
        return rows

    def _warnings(self, samples: Sequence[NicSample]) -> Iterator[str]:
        for sample in samples:
            if sample.source != _RDMA:
                continue
            carried = sum(v for name, v in zip(sample.names, sample.values, strict=True) if name.endswith("_bytes"))
            if carried > self._carried.setdefault(sample.device, carried):
                yield (
                    f"{self._host}: {sample.device} carries RDMA traffic (RoCE), which bypasses the hooks: "
                    "present in the table nic, not attributed to flows"
                )
            self._carried[sample.device] = carried
