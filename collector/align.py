# SPDX-License-Identifier: Apache-2.0
"""One host's monotonic clock on the UTC axis."""

from netmon.records import ClockSample


class Alignment:
    """utc = mono + offset_ns, within error_ns.

    One offset serves a whole session so that the bucket grid stays regular in UTC; it moves only when the newest
    sample contradicts it, that is, differs by more than the sample's error bound.
    """

    def __init__(self, sample: ClockSample, offset_ns: int | None = None) -> None:
        """Begin with the sample, or with an offset that earlier rows of the session used."""
        self.offset_ns = sample.offset_ns if offset_ns is None else offset_ns
        self.error_ns = sample.error_ns
        self.update(sample)

    def update(self, sample: ClockSample) -> bool:
        """Compare with a new sample; True where the offset had to move."""
        moved = abs(sample.offset_ns - self.offset_ns) > sample.error_ns
        if moved:
            self.offset_ns = sample.offset_ns
        self.error_ns = sample.error_ns + abs(sample.offset_ns - self.offset_ns)
        return moved

    def utc(self, mono_ns: int) -> int:
        """A time of this host's clock in ns of the UTC epoch."""
        return mono_ns + self.offset_ns
