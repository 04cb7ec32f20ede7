# SPDX-License-Identifier: Apache-2.0
"""Full resolution of what a trigger wants, into the table `full`."""

import logging
from typing import TYPE_CHECKING

from collector.triggers import Triggers, Wanted
from netmon.errors import DataError

if TYPE_CHECKING:
    from collector.registry import Registry

_log = logging.getLogger(__name__)


async def keep_full(registry: "Registry", triggers: Triggers, wanted: Wanted) -> None:
    """Ask the agents for it, and put it where the next flush finds it."""
    for entry in registry.recording(wanted.hosts):
        hello = entry.session.hello
        try:
            pulled = await registry.full.pull(entry, wanted.since_ns, wanted.until_ns)
        except DataError as error:
            _log.warning(error)
            continue
        triggers.stored(len(pulled.rows))
        _log.info(
            f"{wanted.reason}: {len(pulled.rows)} rows of {hello.host}" + (f"; {pulled.gap}" if pulled.gap else "")
        )
        if len(pulled.rows):
            registry.flushing.full_rows.append(entry.session.full(pulled.rows, wanted.reason, pulled.gap))
