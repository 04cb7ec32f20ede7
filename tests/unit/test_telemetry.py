# SPDX-License-Identifier: Apache-2.0
"""What agent and collector say of themselves: over HTTP, over gRPC, in the log."""

import contextlib
import http.client
import json
import logging
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from authorities import pki, security
from collector_thread import collecting
from grpc_health.v1 import health_pb2, health_pb2_grpc
from waiting import free_port, wait_for

from netmon.errors import UnsupportedError, UsageError
from netmon.telemetry import endpoint as endpoint_module
from netmon.telemetry.endpoint import Condition, Endpoint
from netmon.telemetry.families import own_families, used
from netmon.telemetry.logs import JOURNAL, JSON, TEXT, JournalHandler, configure_logs
from netmon.wire.identity import Identity, Role
from netmon.wire.security import PLAIN, Security


@contextlib.contextmanager
def serving(condition: Condition = Condition(), own: Security = PLAIN, role: Role = Role.AGENT) -> Iterator[Endpoint]:  # noqa: B008
    served = Endpoint("127.0.0.1:0", own, lambda: own_families("agent", used()), lambda: condition, role)
    try:
        yield served
    finally:
        served.close()


def get(port: int, path: str, context: ssl.SSLContext | None = None) -> tuple[int, str]:
    scheme = "https" if context else "http"
    try:
        with urllib.request.urlopen(f"{scheme}://127.0.0.1:{port}{path}", context=context, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_health_readiness_and_metrics() -> None:
    with serving() as served:
        assert get(served.port, "/health") == (200, "health\n")
        assert get(served.port, "/ready") == (200, "ready\n")
        status, text = get(served.port, "/metrics")
        assert status == 200
        assert 'netmon_build_info{part="agent",version="' in text
        assert get(served.port, "/elsewhere")[0] == 404
    with serving(Condition(unready="the disk is full")) as served:
        assert get(served.port, "/health")[0] == 200
        assert get(served.port, "/ready") == (503, "the disk is full\n")
    with serving(Condition(unwell="stuck")) as served:
        assert get(served.port, "/health") == (503, "stuck\n")
        assert get(served.port, "/ready")[0] == 503


def test_strangers_who_say_nothing_keep_nobody_waiting_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "_WITHIN_S", 0.2)
    with serving() as served:
        before = threading.active_count()
        silent = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(30)]
        assert threading.active_count() <= before + endpoint_module._MOST_AT_A_TIME

        def answers() -> bool:
            with contextlib.suppress(OSError, http.client.HTTPException):
                return get(served.port, "/health")[0] == 200
            return False

        wait_for(answers)
        for one in silent:
            one.close()


def test_beyond_this_machine_a_certificate_is_needed() -> None:
    made = pki("ours")
    agent = made.issue(Identity(Role.AGENT, "metrics"), ["127.0.0.1"]).folder
    viewer = security(Role.FULL, "ann").tls
    assert viewer
    context = ssl.create_default_context(cafile=str(viewer / "ca.crt"))
    with serving(own=Security(agent)) as served:
        with pytest.raises((OSError, http.client.HTTPException)):
            get(served.port, "/health", context)
        context.load_cert_chain(viewer / "tls.crt", viewer / "tls.key")
        assert get(served.port, "/health", context)[0] == 200
        before = made.folder(Identity(Role.AGENT, "metrics"))
        assert made.issue(Identity(Role.AGENT, "metrics"), ["127.0.0.1"]).folder == before  # renewed while it runs
        assert get(served.port, "/health", context)[0] == 200


def test_where_it_cannot_listen_it_says_so() -> None:
    with pytest.raises(UsageError, match="without encryption"):
        Endpoint("10.0.0.1:1", PLAIN, lambda: (), Condition, Role.AGENT)
    with serving() as served, pytest.raises(UnsupportedError, match="cannot serve metrics on 127"):
        Endpoint(f"127.0.0.1:{served.port}", PLAIN, lambda: (), Condition, Role.AGENT)


def test_a_collector_answers_probes(tmp_path: Path) -> None:
    port, address = free_port(), f"unix:{tmp_path}/socket"
    with collecting(address, tmp_path / "data", metrics=f"127.0.0.1:{port}"), grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(60)
        ask = health_pb2_grpc.HealthStub(channel)

        def serves(name: str) -> bool:
            request = health_pb2.HealthCheckRequest(service=name)
            with contextlib.suppress(grpc.RpcError):  # it has begun only just now
                return bool(ask.Check(request).status == health_pb2.HealthCheckResponse.SERVING)
            return False

        assert serves("")
        wait_for(lambda: serves("netmon.Collector"))
        wait_for(lambda: get(port, "/ready")[0] == 200)
        assert "netmon_acknowledgement_seconds_bucket" in get(port, "/metrics")[1]


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    root, level = logging.getLogger(), logging.getLogger().level
    yield logging.getLogger("netmon.agent.stream")
    for handler in root.handlers[:]:
        if getattr(handler, "netmon", False):
            root.removeHandler(handler)
            handler.close()
    root.setLevel(level)


def test_a_line_of_json_holds_what_there_is_to_choose_by(
    log: logging.Logger, capfd: pytest.CaptureFixture[str]
) -> None:
    configure_logs(JSON)
    log.warning("no connection to %s\nforged", "c", extra={"host": "h0"})
    (line,) = capfd.readouterr().err.splitlines()
    told = json.loads(line)
    assert (told["level"], told["logger"], told["host"]) == ("warning", "netmon.agent.stream", "h0")
    assert told["message"] == "no connection to c\nforged"


def test_the_journal_is_told_in_fields(log: logging.Logger, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(tmp_path / "socket"))
        configure_logs(JOURNAL, str(tmp_path / "socket"))
        log.error("one\ntwo", extra={"host": "h0"})
        entry = journal.recv(1 << 16)
    assert b"MESSAGE\n\x07\0\0\0\0\0\0\0one\ntwo\n" in entry
    assert b"\nPRIORITY=3\n" in entry
    assert b"\nNETMON_LOGGER=netmon.agent.stream\n" in entry
    assert b"\nNETMON_HOST=h0\n" in entry
    log.error("nobody listens any more")
    assert capfd.readouterr().err == "netmon: nobody listens any more\n"


def test_under_systemd_the_journal_is_chosen(log: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    def chosen() -> list[bool]:
        configure_logs("auto", "/nowhere")
        ours = [handler for handler in logging.getLogger().handlers if getattr(handler, "netmon", False)]
        return [isinstance(handler, JournalHandler) for handler in ours]

    status = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
    assert chosen() == [True]
    monkeypatch.setenv("JOURNAL_STREAM", "1:1")
    assert chosen() == []  # pytest has a handler of its own
    configure_logs(TEXT)
