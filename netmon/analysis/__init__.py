# SPDX-License-Identifier: Apache-2.0
"""What `netmon.open` gives: a dataset, or what a live collector shows, as pandas tables, sentences and figures."""

from pathlib import Path

from netmon.analysis.explanation import Explanation
from netmon.analysis.recording import Live, Recording
from netmon.errors import DataError
from netmon.history.dataset import TIMED_TABLES
from netmon.wire.watch import is_address

__all__ = ["Explanation", "Live", "Recording", "open_data"]


def open_data(where: str, tls: str | None = None) -> Recording | Live:
    """A folder → Recording; HOST:PORT or unix:PATH, of multiple workers with commas → Live.

    tls: the folder with certificates for a collector. Raises DataError, and whatever watch_once raises.
    """
    folder = Path(where).expanduser()
    if folder.is_dir():
        if not any((folder / name).exists() for name in (*TIMED_TABLES, "sessions", ".netmon")):
            raise DataError(f"cannot open {where}: there is no dataset in it; give the --data of a collector")
        return Recording(folder)
    if is_address(where):
        return Live(where, tls)
    raise DataError(f"cannot open {where}: no such folder; give the --data of a collector, or its HOST:PORT")
