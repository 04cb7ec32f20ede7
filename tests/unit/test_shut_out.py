# SPDX-License-Identifier: Apache-2.0
"""Who was let in and would not be any more: calls and pages that were open end. Real certificates, real connections."""

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from authorities import HERE
from collector_stream import Host, hello
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from receiver_here import receive_here
from test_collector_server import message
from test_tls import listening
from waiting import free_port, wait_for

from collector import service
from collector.settings import ListenConfig
from netmon.certificates import Authority, make_token
from netmon.wire import netmon_pb2
from netmon.wire.netmon_pb2_grpc import CollectorStub
from netmon.wire.secure import open_channel
from netmon.wire.security import Identity, Role, Security
from netmon.wire.tls_files import trusted_until_s

ANN, AGENT, COLLECTOR = Identity(Role.FULL, "ann"), Identity(Role.AGENT, "h0"), Identity(Role.COLLECTOR, "c")


def issued(directory: Path) -> Authority:
    made = Authority.make(directory)
    for identity in (ANN, AGENT, COLLECTOR):
        made.issue(identity, HERE if identity.role.listens else ())
    return made


def put(made: Authority, folder: Path, identity: Identity = COLLECTOR) -> Path:
    """Its files, in the place of those that are there."""
    folder.mkdir(exist_ok=True)
    for name in ("ca.crt", "tls.key", "tls.crt"):
        shutil.copy(made.folder(identity) / name, folder / name)
    return folder


class Open:
    """A call that lasts, from its first answer to its end."""

    def __init__(self, channel: grpc.Channel, begin: Callable[[CollectorStub, Callable[[], bool]], Any]) -> None:
        self.answers, self.error, self._over = 0, None, threading.Event()
        self._call = begin(CollectorStub(channel), self._over.is_set)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        wait_for(lambda: self.answers > 0 or self.error is not None)
        assert self.error is None

    def _read(self) -> None:
        try:
            for _ in self._call:
                self.answers += 1
        except grpc.RpcError as error:
            self.error = error.code(), error.details()

    def ended(self) -> tuple[grpc.StatusCode, str]:
        """How, within a minute."""
        wait_for(lambda: self.error is not None, 60)
        return self.error

    def close(self) -> None:
        self._over.set()
        self._call.cancel()
        self._thread.join()


def watch(stub: CollectorStub, over: Callable[[], bool]) -> Any:
    return stub.Watch(netmon_pb2.WatchRequest(interval_ms=50))


def stream(stub: CollectorStub, over: Callable[[], bool]) -> Any:
    def sent() -> Iterator[netmon_pb2.AgentMessage]:
        host = Host()
        yield message(hello(host="h0"))
        while not over():
            yield message(host.batch())
            time.sleep(0.05)

    return stub.Stream(sent())


@contextlib.contextmanager
def calling(address: str, made: Authority) -> Iterator[tuple[grpc.Channel, Open, Open]]:
    """A viewer's channel, what it watches, and an agent's stream."""
    with contextlib.ExitStack() as stack:
        viewer = stack.enter_context(open_channel(address, Security(made.folder(ANN)), (), Role.FULL))
        agent = stack.enter_context(open_channel(address, Security(made.folder(AGENT)), (), Role.AGENT))
        calls = []
        for channel, begin in ((viewer, watch), (agent, stream)):
            calls.append(Open(channel, begin))
            stack.callback(calls[-1].close)
        yield viewer, *calls


def test_streams_end_with_their_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receive_here(monkeypatch)
    monkeypatch.setattr(service, "_CHECK_EVERY_S", 0.1, raising=False)
    made = issued(tmp_path / "pki")
    listens = listening(tmp_path, ListenConfig(Security(made.folder(COLLECTOR))))
    with listens as address, calling(address, made) as (channel, watched, sent):
        later = SimpleNamespace(time=lambda: time.time() + 400 * 86_400, monotonic=time.monotonic)
        monkeypatch.setattr(service, "time", later)
        for call, who in ((watched, "viewer ann"), (sent, "agent h0")):
            code, why = call.ended()
            assert code is grpc.StatusCode.UNAUTHENTICATED
            assert why == f"{who} is admitted no longer: its certificate or token has ended or was replaced"
        with pytest.raises(grpc.RpcError, match="nobody is known by that certificate"):  # over the same connection
            list(CollectorStub(channel).Watch(netmon_pb2.WatchRequest()))


def test_streams_end_when_their_authority_is_replaced(tmp_path: Path) -> None:
    old, new = issued(tmp_path / "old"), issued(tmp_path / "new")
    served = put(old, tmp_path / "served")
    with listening(tmp_path, ListenConfig(Security(served))) as address:
        with calling(address, old) as (channel, watched, sent):
            put(new, served)
            assert watched.ended()[0] is grpc.StatusCode.UNAUTHENTICATED
            assert sent.ended()[0] is grpc.StatusCode.UNAUTHENTICATED
            with pytest.raises(grpc.RpcError, match="nobody is known by that certificate"):
                list(CollectorStub(channel).Watch(netmon_pb2.WatchRequest()))
        with calling(address, new) as (_, watched, sent):
            assert watched.error is sent.error is None


def test_while_both_authorities_are_trusted_nobody_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receive_here(monkeypatch)
    monkeypatch.setattr(service, "_CHECK_EVERY_S", 0.02, raising=False)
    old, new = issued(tmp_path / "old"), issued(tmp_path / "new")
    served = put(old, tmp_path / "served")
    with listening(tmp_path, ListenConfig(Security(served))) as address, calling(address, old) as (_, watched, sent):
        both = (new.directory / "ca.crt").read_bytes() + (old.directory / "ca.crt").read_bytes()
        put(new, served)
        (served / "ca.crt").write_bytes(both)
        with open_channel(address, Security(new.folder(ANN)), (), Role.FULL) as channel:
            newer = Open(channel, watch)
            try:
                seen, stored = watched.answers, sent.answers
                wait_for(lambda: watched.answers > seen + 5 and sent.answers > stored + 5 and newer.answers > 5)
            finally:
                newer.close()
        assert watched.error is sent.error is None


def test_a_stream_ends_with_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receive_here(monkeypatch)
    monkeypatch.setattr(service, "_CHECK_EVERY_S", 0.1, raising=False)
    made, at = issued(tmp_path / "pki"), f"localhost:{free_port(2) + 1}"
    tokens = {name: make_token(made, Identity(Role.JOBS, name), 1)[0] for name in ("gone", "raised", "kept")}
    file = made.directory / "tokens"
    with listening(tmp_path, ListenConfig(Security(made.folder(COLLECTOR)), file, at)), contextlib.ExitStack() as stack:
        watched = {}
        for name, folder in tokens.items():
            channel = stack.enter_context(open_channel(at, Security(folder), (), Role.FULL))
            watched[name] = Open(channel, watch)
            stack.callback(watched[name].close)
        lines = [line for line in file.read_text().splitlines(keepends=True) if " gone " not in line]
        file.write_text("".join(line.replace(" jobs raised ", " full raised ") for line in lines))
        for name in ("gone", "raised"):
            assert watched[name].ended()[0] is grpc.StatusCode.UNAUTHENTICATED
        before = watched["kept"].answers
        wait_for(lambda: watched["kept"].answers > before + 5)
        assert watched["kept"].error is None


def certificate(name: str, issuer: str, key: Any, signer: Any, days: float, authority: bool) -> x509.Certificate:
    now = datetime.now(timezone.utc)
    subject, by = (x509.Name.from_rfc4514_string(f"CN={one}") for one in (name, issuer))
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(by).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=9))
    builder = builder.not_valid_after(now + timedelta(days=days))
    return builder.add_extension(x509.BasicConstraints(authority, None), True).sign(signer, hashes.SHA256())


def test_what_stands_between_a_certificate_and_its_authority_counts() -> None:
    root, middle, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    top = certificate("root", "root", root, root, 30, True)
    between = certificate("middle", "root", middle, root, 20, True)
    leaf = certificate("leaf", "middle", own, middle, 10, False)
    nobodys = certificate("middle", "root", middle, root, 20, False)  # who may not issue certificates
    other = certificate("root", "root", own, own, 30, True)
    pem = {one: one.public_bytes(Encoding.PEM) for one in (top, between, leaf, nobodys, other)}

    def until(*chain: x509.Certificate, of: x509.Certificate = top) -> float:
        return trusted_until_s(pem[chain[0]], b"".join(pem[one] for one in chain[1:]), pem[of])

    assert until(leaf, between) == leaf.not_valid_after_utc.timestamp()
    assert until(leaf, other, between) == leaf.not_valid_after_utc.timestamp()
    assert until(between) == between.not_valid_after_utc.timestamp()
    assert until(leaf) == until(leaf, nobodys) == until(leaf, between, of=other) == 0
    assert trusted_until_s(b"none", b"", pem[top]) == 0
