# SPDX-License-Identifier: Apache-2.0
"""Agents on one spool, each killed in its turn: python crash_spool_run.py DIR SAID DURABILITY SEED AGENTS BATCHES.

What they say: "appended SESSION NUMBER", once the spool has all up to this one; "over SESSION NUMBER", before it is
told that all up to this one are stored. Now and then the disk is slow: a batch comes there late, or waits in memory.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from netmon.agent.spool import Spool
from netmon.agent.spool_folder import SpoolFolder

HELLO = b"a hello"


def body_of(session: str, number: int) -> bytes:
    chance = random.Random(f"{session}/{number}")
    return chance.randbytes(chance.choice((50, 900, 6_000, 20_000)))


def described(session: str, number: int) -> list[tuple[int, bytes]]:
    return [(number, f"flow {number} of {session} ".encode())] if number % 3 == 0 else []


def agent(directory: Path, durability: str, number: int, batches: int, say: "Say") -> None:
    chance = random.Random(number)
    folder = SpoolFolder(directory / "above" / "spool", durability)
    own = Spool(folder, f"s{number:03}", 1 << 30, print)
    own.hello = HELLO
    for session in folder.left_behind():
        if session != own.session and chance.random() < 0.7:
            table = folder.take_over(session)
            assert table is not None
            send(Spool(folder, session, 1 << 30, print, table), say, chance, table.last())
    for sequence in range(1, batches + 1):
        own.append(sequence, body_of(own.session, sequence), b"rows", b"", described(own.session, sequence))
        while own.spooled < sequence and chance.random() < 0.999:  # now and then nobody waits for it
            time.sleep(0.001)
        say("appended", own.session, own.spooled)
        if chance.random() < 0.1:
            over = chance.randrange(own.acknowledged, sequence + 1)
            say("over", own.session, over)
            own.acknowledge(over)
            own.end_flows([number for number in range(1, over) if number % 6 == 0])
    if chance.random() < 0.3:
        send(own, say, chance, batches)
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def send(spool: Spool, say: "Say", chance: random.Random, last: int) -> None:
    """Some of it, or all."""
    over = last if chance.random() < 0.7 else chance.randrange(last + 1)
    say("over", spool.session, over)
    spool.acknowledge(over)
    spool.close()


class Say:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT)

    def __call__(self, *words: object) -> None:
        os.write(self._file, " ".join(map(str, words)).encode())


def in_turn(runs: int, run: "object") -> None:
    """One process after the other."""
    for number in range(runs):
        child = os.fork()
        if not child:
            time.sleep(0.02)  # strace tells of the fork first
            try:
                run(number)  # type: ignore[operator]
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            sys.exit(f"run {number} failed")


def main(directory: str, said: str, durability: str, seed: str, agents: str, batches: str) -> None:
    say = Say(said)
    in_turn(int(agents), lambda number: agent(Path(directory), durability, int(seed) + number, int(batches), say))


if __name__ == "__main__":
    main(*sys.argv[1:])
