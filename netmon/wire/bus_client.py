# SPDX-License-Identifier: Apache-2.0
"""The client of a bus, with TLS where it is requested."""

import contextlib
import functools
import ssl
from collections.abc import Callable, Sequence
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from netmon.errors import CertificateError
from netmon.wire.identity import Role
from netmon.wire.secure import bus_context
from netmon.wire.security import Security

INBOX = "_INBOX"


class _TlsClient(Client):
    """Speaks TLS or not at all, whatever a server says of itself; for each connection with the files as they are."""

    def __init__(self, context: Callable[[], ssl.SSLContext]) -> None:
        """context(): of the files as they are. Raises CertificateError."""
        super().__init__()
        self._new_context = context

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection:
            if not info.get("tls_required"):
                raise nats.errors.Error("it speaks no TLS there: give no --tls, or configure the servers with it")
            with contextlib.suppress(CertificateError):  # while it is being renewed; or it is said at the next start
                self.options["tls"] = self._new_context()
        await super()._process_info(info, initial_connection)


def inbox(host: str) -> str:
    """How the subjects begin at which a host's agent, named by its token, hears answers; without one, a worker."""
    return f"{INBOX}.{host}" if host else INBOX


def bus_client(servers: Sequence[str], security: Security, host: str) -> tuple[Client, dict[str, Any]]:
    """A client that is not connected, and the options with which it is to be. Raises UsageError, CertificateError.

    host: as its token, of an agent; empty: a worker.
    """
    options: dict[str, Any] = {"inbox_prefix": inbox(host)}
    folders = [security.folder(server, "connect to the bus at") for server in servers]
    if folders[0] is None:
        return Client(), options
    context = functools.partial(bus_context, folders[0], Role.AGENT if host else Role.COLLECTOR)
    return _TlsClient(context), options | {"tls": context()}


def may_answer(message: Msg) -> bool:
    """Whether an answer goes to where its sender listens, and not in our name to somebody else."""
    return message.reply.startswith(f"{INBOX}.")
