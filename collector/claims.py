# SPDX-License-Identifier: Apache-2.0
"""Which process is which rank of which job, where two jobs call themselves by one name."""

from typing import NamedTuple


class Holder(NamedTuple):
    """A process that trains, as an agent knows it."""

    host: str
    session: str
    pid: int


class Claims:
    """The ranks of all jobs and who holds them; a rank has one holder at a time.

    A process that steps as a rank which another one holds belongs to another job of the same name: it is given the
    name `job#2`, so that the two are not mixed.
    """

    def __init__(self) -> None:
        """Begin without jobs."""
        self._held: dict[tuple[str, int], Holder] = {}  # by the name that was given
        self._size: dict[str, int] = {}

    def claim(self, job: str, rank: int, size: int, holder: Holder) -> str:
        """The name under which the holder is this rank: the job's own, or `job#2`, `job#3`, …

        A claim of an earlier session of the same host is void: its agent sees the processes anew.
        """
        number = 1
        while True:
            name = job if number == 1 else f"{job}#{number}"
            held = self._held.get((name, rank))
            free = held is None or held == holder or (held.host == holder.host and held.session != holder.session)
            if free and self._size.get(name, size) in (size, 0):
                self._held[name, rank] = holder
                self._size[name] = size
                return name
            number += 1

    def hold(self, name: str, rank: int, holder: Holder) -> None:
        """Claim the name again that the holder was given, as after its agent was cut off, if nobody has it now."""
        self._held.setdefault((name, rank), holder)

    def release(self, name: str, rank: int, holder: Holder) -> None:
        """The holder steps no more as this rank."""
        if self._held.get((name, rank)) == holder:
            del self._held[name, rank]
            self._forget_sizes()

    def release_session(self, session: str) -> None:
        """Nothing is heard of a session's processes any more: others may take their ranks."""
        self._held = {key: holder for key, holder in self._held.items() if holder.session != session}
        self._forget_sizes()

    def _forget_sizes(self) -> None:
        names = {name for name, _ in self._held}
        self._size = {name: size for name, size in self._size.items() if name in names}
