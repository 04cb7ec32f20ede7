# SPDX-License-Identifier: Apache-2.0
"""What a process keeps in memory. What was freed goes back to the machine: arrays of a few hundred hosts come and go
many times a second. What is not needed is not loaded.
"""

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from importlib.abc import MetaPathFinder

from netmon.wire.limits import FEW_THREADS

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of mallopt(3), as <malloc.h> has them
_LARGE = 32 << 20  # the most that can be set; a column of a second of 2 million rows is smaller
_TRIM_S = 5.0


def set_libraries_up() -> None:
    """Before they are imported, which is when they read it: the value of an option may be what imports them."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its own lines alongside ours
    os.environ.setdefault("GRPC_EXPERIMENTS", FEW_THREADS)
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # its own allocator keeps what was freed


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(f"{fullname} is not needed")


def do_without_pandas() -> None:
    """To be called once, before arrays are made: 48 MB, and a quarter of a second of the start.

    The first array that pyarrow makes imports pandas, to see whether it is made of one of its columns. Once that has
    failed it does not try again, until a table is to become a frame: whoever reads the past does so as before.
    """
    import pyarrow as pa

    none = _NoPandas()
    sys.meta_path.insert(0, none)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(none)


def give_back() -> None:
    """Set up glibc's malloc of this process; elsewhere nothing happens. To be called once, before there are threads.

    Left alone it learns that large arrays are freed again, and keeps up to 64 MB of them in each arena, of which there
    are eight for each core: a quarter of the memory of a collector of many hosts. Where every column goes back at once,
    fetching it again, page by page, is a third of the work.
    """
    library = ctypes.CDLL(None)
    mallopt, trim = (getattr(library, name, None) for name in ("mallopt", "malloc_trim"))
    if mallopt and trim:
        for what, value in ((_MMAP_THRESHOLD, _LARGE), (_TRIM_THRESHOLD, 2 * _LARGE), (_ARENA_MAX, 2)):
            mallopt(what, value)
        threading.Thread(target=_trim_for_ever, args=(trim,), name="allocator", daemon=True).start()


def _trim_for_ever(trim: Callable[[int], int]) -> None:
    """What is free between things that are kept goes back, too: else a heap stays as large as it ever was."""
    while True:
        time.sleep(_TRIM_S)
        trim(0)
