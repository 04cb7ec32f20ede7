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
from prometheus_client import Metric
from waiting import free_port, wait_for

from netmon.errors import UnsupportedError, UsageError
from netmon.telemetry import endpoint as endpoint_module
from netmon.telemetry.endpoint import Condition, Endpoint, own_families, used
from netmon.telemetry.logs import JOURNAL, JSON, TEXT, JournalHandler, configure_logs
from netmon.wire.security import PLAIN, Identity, Role, Security


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


def connected(port: int, count: int) -> list[socket.socket]:
    return [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(count)]


def closed(stranger: socket.socket) -> bool:
    """Whether the other end has hung up, instead of waiting for the rest of a request."""
    with contextlib.suppress(BlockingIOError):
        try:
            return stranger.recv(1 << 16, socket.MSG_DONTWAIT) == b""
        except ConnectionError:
            return True
    return False


@contextlib.contextmanager
def dripping(strangers: list[socket.socket]) -> Iterator[None]:
    """Each sends another byte of its request again and again, and never the last one."""
    over = threading.Event()

    def drip() -> None:
        while not over.wait(0.02):
            for stranger in strangers:
                with contextlib.suppress(OSError):
                    stranger.send(b"x")

    for stranger in strangers:
        stranger.sendall(b"GET /health HTTP/1.1\r\nX-Slow: ")
    thread = threading.Thread(target=drip)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for stranger in strangers:
            stranger.close()


def test_slow_clients_keep_nobody_waiting() -> None:
    with serving() as served, dripping(connected(served.port, 30)):
        for path in ("/health", "/ready", "/metrics") * 5:
            assert get(served.port, path)[0] == 200


def test_a_request_has_to_be_over_in_time_however_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "_WITHIN_S", 0.5)
    with serving() as served:
        strangers = connected(served.port, 3)
        with dripping(strangers):
            wait_for(lambda: all(closed(stranger) for stranger in strangers))


def test_who_is_one_too_many_takes_the_place_of_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "_MOST_CONNECTIONS", 8)
    with serving() as served:
        strangers = connected(served.port, 40)
        with dripping(strangers):
            assert get(served.port, "/health")[0] == 200
            wait_for(lambda: closed(strangers[0]))


def test_who_never_shakes_hands_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "_MOST_CONNECTIONS", 8)
    agent = pki("ours").issue(Identity(Role.AGENT, "handshakes"), ["127.0.0.1"]).folder
    viewer = security(Role.FULL, "ann").tls
    assert viewer
    context = ssl.create_default_context(cafile=str(viewer / "ca.crt"))
    context.load_cert_chain(viewer / "tls.crt", viewer / "tls.key")
    with serving(own=Security(agent)) as served:
        strangers = connected(served.port, 40)
        with dripping(strangers):
            assert get(served.port, "/health", context)[0] == 200
            wait_for(lambda: closed(strangers[0]))


@pytest.mark.parametrize(
    "sent", [b"\0\1\2\r\n\r\n", b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n", b"POST /\r\n\r\n"]
)
def test_what_is_no_request_is_refused_without_a_word_in_the_log(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with serving() as served:
        (stranger,) = connected(served.port, 1)
        with stranger, contextlib.suppress(ConnectionError):
            stranger.sendall(sent)
            while stranger.recv(1 << 16):
                pass
        assert get(served.port, "/health")[0] == 200
    assert not [record for record in caplog.records if record.levelno >= logging.INFO]


def test_what_takes_long_to_tell_is_told_once_and_keeps_probes_no_longer() -> None:
    asked, go_on = [], threading.Event()

    def slowly() -> Iterator[Metric]:
        asked.append(1)
        go_on.wait(60)
        return own_families("agent", used())

    served = Endpoint("127.0.0.1:0", PLAIN, slowly, Condition, Role.AGENT)
    try:
        scrapers = connected(served.port, 12)
        for scraper in scrapers:
            scraper.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_for(lambda: bool(asked))
        assert get(served.port, "/health")[0] == 200
        go_on.set()
        for scraper in scrapers:
            with scraper:
                assert scraper.recv(1 << 10).startswith(b"HTTP/1.1 200 OK")
        assert asked == [1]
    finally:
        go_on.set()
        served.close()


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
        assert get(served.port, "/metrics", context)[0] == 200
        few = security(Role.JOBS, "wall").tls
        assert few
        context = ssl.create_default_context(cafile=str(few / "ca.crt"))
        context.load_cert_chain(few / "tls.crt", few / "tls.key")
        assert get(served.port, "/metrics", context)[0] == 403  # labels name processes
        assert get(served.port, "/ready", context)[0] == 200


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
