# SPDX-License-Identifier: Apache-2.0
"""Full resolution of what a trigger wants, into the table `full`."""

import logging
from collections.abc import Iterable

from collector.entry import Entry
from collector.flushing import Flushing
from collector.full_resolution import FullResolution
from collector.triggers import Triggers, Wanted
from netmon.errors import DataError

_log = logging.getLogger(__name__)


async def keep_full(
    entries: Iterable[Entry], full: FullResolution, flushing: Flushing, triggers: Triggers, wanted: Wanted
) -> None:
    """Ask these agents for it, and put it where the next flush finds it."""
    for entry in entries:
        try:
            pulled = await full.pull(entry, wanted.since_ns, wanted.until_ns)
        except DataError as error:
            _log.warning(error)
            continue
        triggers.stored(len(pulled.rows))
        gap = f"; {pulled.gap}" if pulled.gap else ""
        _log.info(f"{wanted.reason}: {len(pulled.rows)} rows of {entry.session.hello.host}{gap}")
        if len(pulled.rows):
            flushing.full_rows.append(entry.session.full(pulled.rows, wanted.reason, pulled.gap))
