# SPDX-License-Identifier: Apache-2.0
"""GET /metrics. What is told is taken from the collector's loop at each request, and put into words beside it."""

import asyncio
import resource
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as LateError

from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.registry import Collector

from collector.metrics.families import Seen, families
from netmon.errors import UnsupportedError, UsageError
from netmon.wire.security import Security

_WITHIN_S = 5.0
_AGAIN_S = 0.5  # an answer serves again for so long, however often it is asked for
_FILES = ("tls.crt", "tls.key", "ca.crt")


class _Scraped(Collector):
    def __init__(self, look: Callable[[], Seen]) -> None:
        self._look, self._loop = look, asyncio.get_running_loop()
        self._one_at_a_time = threading.Lock()
        self._seen: Seen | None = None
        self._seen_s = 0.0

    def describe(self) -> Iterator[Metric]:
        return iter(())  # else it would be asked now, by the loop that it asks

    def collect(self) -> Iterator[Metric]:
        with self._one_at_a_time:
            if self._seen is None or time.monotonic() - self._seen_s > _AGAIN_S:
                looking = asyncio.run_coroutine_threadsafe(self._look_now(), self._loop)
                try:
                    self._seen, self._seen_s = looking.result(_WITHIN_S), time.monotonic()
                except LateError:  # the loop is busy: the answer is an error
                    looking.cancel()
                    raise
            return families(self._seen)

    async def _look_now(self) -> Seen:
        return self._look()


class MetricsEndpoint:
    """An HTTP server in threads of its own. Made on the loop that `look` belongs to."""

    def __init__(self, address: str, security: Security, look: Callable[[], Seen]) -> None:
        """Listens on HOST:PORT, where others than this machine can ask with a certificate of the same authority.

        look: called on this loop. Raises UsageError, UnsupportedError.
        """
        host, port = _split(address)
        folder = security.folder(address, "serve metrics on")
        registry = CollectorRegistry()
        registry.register(_Scraped(look))
        try:
            if folder:
                certificate, key, authority = (str(folder / name) for name in _FILES)
                self._server, self._thread = start_http_server(
                    port, host, registry, certificate, key, authority, client_auth_required=True
                )
            else:
                self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise UnsupportedError(f"cannot serve metrics on {address}: {error.strerror or error}") from error

    @property
    def port(self) -> int:
        """That it listens on."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stops listening; blocks for half a second at most. The loop may not be waiting for it meanwhile."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise UsageError(f"cannot serve metrics on {address}: give HOST:PORT, such as localhost:9464")
    return host.removeprefix("[").removesuffix("]"), int(port)


def used() -> tuple[float, int]:
    """CPU seconds of this process and of children that have ended, and its resident bytes."""
    cpu = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return cpu, pages * resource.getpagesize()
