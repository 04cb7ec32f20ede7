# SPDX-License-Identifier: Apache-2.0
"""The collector's ports: with certificates, with tokens, or in the clear where only this machine can connect."""

import asyncio
import logging
import os
import socket
import stat
from pathlib import Path

import grpc

from collector.admission import Admission
from collector.settings import ListenConfig
from netmon.errors import UnsupportedError, UsageError
from netmon.service_user import give_socket
from netmon.wire.secure import Watched, server_credentials
from netmon.wire.tokens import Tokens

_SOCKET_PATH_BYTES = 107  # unix(7)

_CALL = "_schedule_rpc_coro"  # the name that gRPC gives to the work on a call
_OVER_WITHIN_S = 1.0
_PEER_HAS_GONE = "ExecuteBatchError raised in core by servicer method"


def admission_to(listen: str, listen_config: ListenConfig) -> Admission:
    """Of a collector that listens there. Raises UsageError, CertificateError."""
    if (listen_config.tokens is None) != (not listen_config.token_listen):
        raise UsageError("--tokens FILE and --token-listen HOST:PORT belong together")
    folder = listen_config.security.folder(listen, "listen on")
    return Admission(
        Watched(folder) if folder else None, Tokens(listen_config.tokens) if listen_config.tokens else None
    )


def listen_at(server: grpc.aio.Server, address: str, listen_config: ListenConfig, admission: Admission) -> None:
    """Open the ports. admission: of that door and address. Raises UsageError, UnsupportedError."""
    logging.getLogger("grpc._cython.cygrpc").addFilter(_worth_reporting)
    files = admission.files
    if address.startswith("unix:"):
        _clear_socket(address)
    _bind(server, address, server_credentials(files) if files else None)
    if listen_config.token_listen:
        if files is None:
            raise UsageError("cannot take tokens without encryption: give --tls DIR beside --token-listen")
        _bind(server, listen_config.token_listen, server_credentials(files, certificates=False))


async def stop_listening(server: grpc.aio.Server, grace_s: float) -> None:
    """Close the ports; who is still connected is cut off after so long.

    gRPC says that it has stopped a moment before its calls have: those that the end of the event loop finds are called
    off, and gRPC writes a traceback for each.
    """
    await server.stop(grace_s)
    calls = [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__name__", "") == _CALL]
    if calls:
        await asyncio.wait(calls, timeout=_OVER_WITHIN_S)


def _worth_reporting(record: logging.LogRecord) -> bool:
    """False: somebody has gone while they were sent something; gRPC has not noticed it yet, and prints a traceback."""
    return not record.getMessage().startswith(_PEER_HAS_GONE)


def _bind(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> None:
    try:
        bound = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    except RuntimeError:
        bound = 0
    if not bound:
        raise UnsupportedError(
            f"cannot listen on {address}: the address is in use or not this machine's; choose another --listen"
        )
    if address.startswith("unix:"):
        give_socket(Path(address.removeprefix("unix:")))


def _clear_socket(address: str) -> None:
    """Remove a socket that nobody listens on any more; gRPC would take over a live one without a word."""
    path = Path(address.removeprefix("unix:"))
    if len(os.fsencode(path)) > _SOCKET_PATH_BYTES:
        raise UnsupportedError(
            f"cannot listen on {address}: the path of a UNIX socket has at most {_SOCKET_PATH_BYTES} bytes; "
            "choose a shorter one"
        )
    if not path.parent.is_dir():
        raise UnsupportedError(f"cannot listen on {address}: {path.parent} is not a directory; create it")
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise UnsupportedError(
            f"cannot listen on {address}: a file that is no socket is there; choose another --listen"
        )
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise UnsupportedError(f"cannot listen on {address}: another process does; stop it or choose another --listen")
