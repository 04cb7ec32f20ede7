# SPDX-License-Identifier: Apache-2.0
"""The job stage in a process of its own: reads pickled HostNews from a connection, answers JobNews, ends with it.

Signals that end the collector do not end it: the collector may have a last word to tell. Where there are fewer cores
than work, the collector goes first: what is compared later is only told later.
"""

import os
import pickle
import signal
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue

from collector.allocator import give_back
from collector.jobs.stage import JobStage

_NICE = 5


def main(descriptor: int) -> None:
    """Serve the collector that holds the other end of this socket; returns never."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):  # whoever runs us may have forbidden it
        os.nice(_NICE)
    give_back()
    connection: Connection[bytes, bytes] = Connection(descriptor)
    inbox: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, inbox), daemon=True).start()
    stage = JobStage()
    while True:
        answer = stage.hear(pickle.loads(inbox.get()))
        try:
            connection.send_bytes(pickle.dumps(answer, protocol=5))
        except OSError:
            os._exit(0)


def _receive(connection: "Connection[bytes, bytes]", inbox: "SimpleQueue[bytes]") -> None:
    """Until the collector closes its end, or is gone: then this process ends, whatever it computes."""
    while True:
        try:
            inbox.put(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
