# SPDX-License-Identifier: Apache-2.0
"""The collector's /metrics, /health and /ready: read on its loop at each request, rendered in a thread."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import TimeoutError as LateError
from typing import Any, TypeVar

from prometheus_client import Metric

from collector.metrics.families import Seen, families
from netmon.telemetry.endpoint import Condition, Endpoint
from netmon.wire.identity import Role
from netmon.wire.security import Security

_WITHIN_S = 5.0
_T = TypeVar("_T")


def metrics_endpoint(
    address: str, security: Security, look: Callable[[], Coroutine[Any, Any, Seen]], condition: Callable[[], Condition]
) -> Endpoint:
    """Listens on HOST:PORT until it is closed; look, condition: called on this loop.

    Raises UsageError, UnsupportedError, CertificateError.
    """
    loop = asyncio.get_running_loop()

    def on_loop(work: Coroutine[Any, Any, _T]) -> _T:
        asking = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return asking.result(_WITHIN_S)
        except LateError:  # the loop is busy: the answer is an error
            asking.cancel()
            raise

    async def now() -> Condition:
        return condition()

    def metrics() -> Iterable[Metric]:
        return families(on_loop(look()))

    return Endpoint(address, security, metrics, lambda: on_loop(now()), Role.COLLECTOR)
