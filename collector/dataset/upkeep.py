# SPDX-License-Identifier: Apache-2.0
"""What a dataset needs alongside being written: small files are merged, old hours go. At the lowest priority."""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from collector.dataset.retention import Keep
from collector.dataset.sink import ParquetSink
from netmon.errors import DataError

_EVERY_S = 20.0
_log = logging.getLogger(__name__)


class Upkeep:
    """Runs until it is closed."""

    def __init__(self, sink: ParquetSink, keep: Callable[[], Sequence[Keep]]) -> None:
        """Begin. keep(): in force now."""
        self._sink, self._keep = sink, keep
        self._stop = threading.Event()
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop soon: a file that is being merged is given up."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        while not self._stop.wait(_EVERY_S):
            try:
                self._sink.take_absent()
                while self._sink.merge_some(lambda: not self._stop.is_set()):
                    pass
                self._sink.drop(self._keep())
            except DataError as error:
                if str(error) != self._trouble:
                    _log.warning(error)
                self._trouble = str(error)
            else:
                self._trouble = ""
