# SPDX-License-Identifier: Apache-2.0
"""What NCCL's RAS says of its ranks, and what strangers say in its place."""

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from netmon.errors import KernelError
from netmon.kernel.machine import nccl_checks
from netmon.kernel.training.ras import Communicator, Rank, Said, checked, checked_answer, read

REAL = (Path(__file__).parents[1] / "data/nccl/ras-2.28.9.json").read_text()
"""Of NCCL 2.28.9, two ranks on two hosts."""


def answers(*lines: str) -> Callable[[socket.socket], None]:
    """Says a line for each that it hears, and closes."""

    def speak(to: socket.socket) -> None:
        for line in lines:
            to.recv(4096)
            to.sendall(line.encode())

    return speak


def heard(speak: Callable[[socket.socket], None], seconds: float = 2.0) -> dict:
    ours, theirs = socket.socketpair()

    def work() -> None:
        with theirs, suppress(OSError):
            speak(theirs)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        with ours:
            return read(ours, time.monotonic() + seconds)
    finally:
        thread.join()


def document(**changes: object) -> dict:
    return json.loads(REAL) | changes


def with_rank(**changes: object) -> dict:
    """The real one, with one rank changed."""
    changed = document()
    changed["communicators"][0]["ranks"][1] |= changes
    return changed


def test_ranks_are_where_nccl_says() -> None:
    said = checked((680,), heard(answers("SERVER PROTOCOL 2\n", "OK\n", "OK\n", REAL)))
    ranks = (Rank(0, "198.18.1.2", 680, 0), Rank(1, "198.18.2.2", 681, 0))
    assert said == Said((680,), "2.28.9", (Communicator(2, 0, ranks),))
    (check,) = nccl_checks([said])
    assert check.detail == (
        "used by 680: 2.28.9, says its RAS: of 2: rank 0 on 198.18.1.2 (680, GPU 0), 1 on 198.18.2.2 (681, GPU 0)"
    )


def test_what_is_not_known_is_said_with_the_reason() -> None:
    (check,) = nccl_checks([Said((7, 8), reason="it is shy")])
    assert check.detail == "used by 7, 8: where the ranks are is not known: it is shy"


def test_an_older_one_has_no_json() -> None:
    with pytest.raises(ValueError, match="no JSON"):
        heard(answers("SERVER PROTOCOL 2\n", "OK\n", "ERROR: Unknown command\n"))


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (("HTTP/1.0 400 Bad Request\r\n",), "not NCCL's RAS"),
        (("\x00\xff" * 500,), "closes the connection"),
        (("x" * 5000,), "too much"),
        (("SERVER PROTOCOL 2\n", "OK\n", "OK\n", "{"), "is no JSON"),
        (("SERVER PROTOCOL 2\n", "OK\n", "OK\n", "[" * 1_000_000), "too deep"),
        (("SERVER PROTOCOL 2\n", "OK\n", "OK\n", '{"nccl_version": ' + "9" * 5000 + "}"), "is no JSON"),
        (("SERVER PROTOCOL 2\n", "OK\n", "OK\n", '{"a": "' + "x" * 5_000_000 + '"}'), "too much"),
        (("SERVER PROTOCOL 2\n", "OK\n", "OK\n", "[1, 2]"), "no communicators"),
        (("SERVER PROTOCOL 2\n",), "closes the connection"),
    ],
)
def test_who_only_listens_there_is_not_believed(lines: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        heard(answers(*lines))


def test_who_is_silent_or_slow_or_never_ends_is_not_waited_for() -> None:
    def slow(to: socket.socket) -> None:
        while True:
            to.sendall(b"S")
            time.sleep(0.02)

    def endless(to: socket.socket) -> None:
        answers("SERVER PROTOCOL 2\n", "OK\n", "OK\n")(to)
        while True:
            to.sendall(b" " * 65536)

    began = time.monotonic()
    for speak in (lambda to: to.recv(1 << 20) and to.recv(1) and None, slow, endless):
        with pytest.raises(ValueError, match=r"in time|too much"):
            heard(speak, 0.3)
    assert time.monotonic() - began < 3


@pytest.mark.parametrize(
    "wrong",
    [
        *({}, [], None, 7, {"communicators": 7}, {"communicators": [7], "nccl_version": "2"}),
        *(
            with_rank(rank=-1),
            with_rank(rank=1 << 40),
            with_rank(pid="1"),
            with_rank(cuda_dev=1e9),
            with_rank(pid=None),
        ),
        document(communicators=[{"size": 2, "ranks": {}, "missing_ranks": []}]),
        document(communicators=[{"size": 2, "ranks": []}]),
    ],
)
def test_another_form_is_none(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"its RAS says"):
        checked_answer(wrong)


def test_names_are_printable_and_short_and_ranks_are_few() -> None:
    changed = with_rank(host="\x1b[2J" + "h" * 10_000)
    changed["communicators"] *= 1000
    changed["communicators"][0]["ranks"] *= 1000
    found = checked_answer(changed)
    ranks = [rank for one in found["communicators"] for rank in one["ranks"]]
    assert len(ranks) == 512
    assert all(len(host) <= 64 and host.isprintable() for _, host, _, _ in ranks)
    assert len(json.dumps(found)) < 64 << 10


@pytest.mark.parametrize("answer", [{}, {"version": "2", "communicators": [{}]}, {"version": "2", "communicators": 3}])
def test_what_the_child_says_is_not_believed_either(answer: dict) -> None:
    with pytest.raises(KernelError, match="no form"):
        checked((1,), answer)
