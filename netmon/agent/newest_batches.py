# SPDX-License-Identifier: Apache-2.0
"""The newest batches that are not acknowledged, in memory wherever else they are: a disk may not give them back."""

from netmon.agent.batch_table import Kept


class NewestBatches:
    """By their numbers, which ascend. The oldest go where they are too large together; the newest stays."""

    def __init__(self) -> None:
        """None."""
        self.nbytes = 0
        self._batches: dict[int, Kept] = {}

    @property
    def numbers(self) -> list[int]:
        """Of those that are here."""
        return list(self._batches)

    def add(self, batch: Kept, most_bytes: int) -> None:
        """The newest; most_bytes: of all."""
        self._batches[batch.sequence] = batch
        self.nbytes += batch.nbytes
        while self.nbytes > most_bytes and len(self._batches) > 1:
            self.forget(next(iter(self._batches)))

    def get(self, sequence: int) -> Kept | None:
        """With this number, if it is here."""
        return self._batches.get(sequence)

    def forget(self, *sequences: int) -> None:
        """What has these numbers is read from where it is kept, if it still is."""
        for sequence in sequences:
            batch = self._batches.pop(sequence, None)
            self.nbytes -= batch.nbytes if batch else 0

    def forget_to(self, sequence: int) -> None:
        """All up to this one."""
        while self._batches and (oldest := next(iter(self._batches))) <= sequence:
            self.forget(oldest)
