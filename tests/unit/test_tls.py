# SPDX-License-Identifier: Apache-2.0
"""Who is let in with TLS: real certificates, a real collector, real channels."""

import asyncio
import contextlib
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from authorities import pki, security
from collector_stream import Host, hello
from collector_thread import collecting
from test_collector_server import FAST, message
from waiting import free_port, wait_for

from collector.server import serve
from collector.settings import ListenConfig
from netmon.certificates import Authority, make_token
from netmon.errors import CertificateError, UsageError
from netmon.views import Selection
from netmon.wire import netmon_pb2
from netmon.wire.netmon_pb2_grpc import CollectorStub
from netmon.wire.questions import get_full
from netmon.wire.secure import open_channel
from netmon.wire.security import PLAIN, Identity, Role, Security
from netmon.wire.watch import UnreachableError, watch_once

COLLECTOR = security(Role.COLLECTOR, "c")
ANN, WALL = security(Role.FULL, "ann"), security(Role.JOBS, "wall")
TEN = Selection(flows=10)


@contextlib.contextmanager
def listening(directory: Path, listen_config: ListenConfig, host: str = "127.0.0.1") -> Iterator[str]:
    port = free_port()
    with collecting(f"{host}:{port}", directory / "data", listen_config=listen_config):
        wait_for(lambda: answers(port))
        yield f"127.0.0.1:{port}"


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


class Ours:
    """One collector for many tests: with certificates at one address, with tokens at another."""

    def __init__(self, address: str, for_tokens: str) -> None:
        self.address, self.for_tokens = address, for_tokens


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ours]:
    made, for_tokens = pki("ours"), f"localhost:{free_port(2) + 1}"
    make_token(made, Identity(Role.JOBS, "graf"), 1)
    listen_config = ListenConfig(COLLECTOR, made.directory / "tokens", for_tokens)
    with listening(tmp_path_factory.mktemp("ours"), listen_config) as address:
        yield Ours(address, for_tokens)


def session(address: str, own: Security, host: str, batches: int = 3) -> int:
    """The last acknowledgement of a session that an agent with this certificate sends in a host's name."""
    source = Host()
    contents = [hello(host=host, session=f"s-{host}"), *(source.batch() for _ in range(batches))]
    with open_channel(address, own, (), Role.AGENT) as channel:
        return [told.sequence for told in CollectorStub(channel).Stream(map(message, contents))][-1]


def refusal(ask: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        ask()
    return error.value.code(), error.value.details()


def test_an_agent_speaks_for_its_host_and_no_other(ours: Ours) -> None:
    address = ours.address
    own = security(Role.AGENT, "h0")
    assert session(address, own, "h0") == 3
    code, why = refusal(lambda: session(address, own, "h1"))
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert why == "agent h0 says that it is h1: give the agent --host h0, or a certificate of h1"
    assert session(address, security(Role.AGENT, "h1"), "h1") == 3
    assert sorted(host.host for host in watch_once(address, TEN, ANN).hosts) == ["h0", "h1"]


def test_each_role_may_do_its_own(ours: Ours) -> None:
    address = ours.address
    assert session(address, security(Role.AGENT, "h0"), "h0") == 3
    with open_channel(address, ANN, (), Role.FULL) as channel:
        code, why = refusal(lambda: list(CollectorStub(channel).Stream(iter([message(hello())]))))
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert why == "viewer ann (viewer/full) may not do that: it takes agent"
    with pytest.raises(CertificateError, match=r"tls.crt is agent h0's; a certificate of viewer/full or"):
        watch_once(address, TEN, security(Role.AGENT, "h0"))
    with pytest.raises(UnreachableError, match=r"viewer wall \(viewer/jobs\) may not do that: it takes viewer/full"):
        list(get_full(address, [], 1, 2, WALL))
    with pytest.raises(UnreachableError, match="not connected"):
        list(get_full(address, ["h9"], 1, 2, ANN))


def test_who_may_do_nothing_may_call_nothing(ours: Ours) -> None:
    """Also what will be added to the contract."""
    calls = netmon_pb2.DESCRIPTOR.services_by_name["Collector"].methods
    with open_channel(ours.address, security(Role.BUS, "n"), (), Role.BUS) as channel:
        for method in calls:
            request = getattr(netmon_pb2, method.input_type.name)()
            call = channel.stream_stream(f"/netmon.Collector/{method.name}")(iter([request.SerializeToString()]))
            assert refusal(lambda call=call: list(call))[0] is grpc.StatusCode.PERMISSION_DENIED
    assert len(calls) >= 4


def test_a_viewer_of_jobs_sees_no_address_and_no_process(ours: Ours) -> None:
    address = ours.address
    agent = open_channel(address, security(Role.AGENT, "h0"), (), Role.AGENT)
    host, over = Host(), asyncio.Event()
    contents = [hello(host="h0"), *(host.batch() for _ in range(12))]

    def sent():
        yield from map(message, contents)
        while not over.is_set():
            yield message(host.batch())

    with agent:
        call = CollectorStub(agent).Stream(sent())
        for told in call:
            if told.sequence >= 5:
                break
        full, jobs = watch_once(address, TEN, ANN), watch_once(address, TEN, WALL)
        over.set()
        call.cancel()
    assert full.flows
    assert (jobs.flows, jobs.warnings) == ((), ())
    assert [job.job for job in jobs.jobs] == [job.job for job in full.jobs] != []
    assert len(jobs.links) == len(full.links)


def test_a_token_is_enough_where_it_is_asked_for(ours: Ours) -> None:
    made, address, where = pki("ours"), ours.address, ours.for_tokens
    folder, _ = make_token(made, Identity(Role.JOBS, "graf"), 1)
    assert watch_once(where, TEN, Security(folder)).flows == ()
    with pytest.raises(UnreachableError, match="hangs up"):  # it wants a certificate there
        watch_once(address, TEN, Security(folder))
    with pytest.raises(UnreachableError, match=r"viewer graf \(viewer/jobs\) may not do that"):
        list(get_full(where, [], 1, 2, Security(folder)))
    (folder / "token").write_text("another")
    with pytest.raises(UnreachableError, match="nobody is known by that certificate or token"):
        watch_once(where, TEN, Security(folder))
    make_token(made, Identity(Role.FULL, "graf"), 1)  # without a restart
    assert watch_once(where, TEN, Security(folder))
    with open_channel(where, Security(folder), (), Role.FULL) as channel:
        code, _ = refusal(lambda: list(CollectorStub(channel).Stream(iter([message(hello())]))))
    assert code is grpc.StatusCode.PERMISSION_DENIED


def test_strangers_are_told_why(ours: Ours, tmp_path: Path) -> None:
    mixed = tmp_path / "mixed"
    shutil.copytree(security(Role.FULL, "ann", "theirs").tls, mixed)
    with pytest.raises(UnreachableError, match="it hangs up: does it want TLS"):
        watch_once(ours.address, TEN, PLAIN)
    with pytest.raises(UnreachableError, match=r"of another authority than our ca\.crt"):
        watch_once(ours.address, TEN, security(Role.FULL, "ann", "theirs"))
    shutil.copy(COLLECTOR.tls / "ca.crt", mixed / "ca.crt")
    with pytest.raises(CertificateError, match=r"tls.crt is of another authority than .*ca.crt: copy the whole"):
        watch_once(ours.address, TEN, Security(mixed))


def test_tls_to_who_speaks_none_says_so(tmp_path: Path) -> None:
    with listening(tmp_path, ListenConfig()) as address:
        with pytest.raises(UnreachableError, match="it speaks no TLS there"):
            watch_once(address, TEN, ANN)
        assert not watch_once(address, TEN).insecure  # nobody else can listen


def test_certificates_are_renewed_without_a_restart(tmp_path: Path) -> None:
    made = Authority.make(tmp_path / "pki")
    collector = Identity(Role.COLLECTOR, "c")
    made.issue(collector, ["another.example"])
    viewer = Security(made.issue(Identity(Role.FULL, "v")).folder)
    with listening(tmp_path, ListenConfig(Security(made.folder(collector)))) as address:
        with pytest.raises(UnreachableError, match="for other addresses"):
            watch_once(address, TEN, viewer)
        key = made.folder(collector) / "tls.key"
        kept = key.read_bytes()
        key.write_bytes(b"half of a key")
        with pytest.raises(UnreachableError, match="for other addresses"):  # what was there before is used
            watch_once(address, TEN, viewer)
        key.write_bytes(kept)
        made.issue(collector, ["127.0.0.1"])
        assert watch_once(address, TEN, viewer)
        made.issue(Identity(Role.FULL, "v"))
        assert watch_once(address, TEN, viewer)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "10.0.0.1:9400", "head.example:9400"])
def test_plaintext_does_not_leave_the_machine(tmp_path: Path, listen: str) -> None:
    with pytest.raises(UsageError, match="without encryption: give --tls DIR"):
        asyncio.run(serve(replace(FAST, listen=listen, data=tmp_path / "data")))
    with pytest.raises(UsageError, match="without encryption"):
        watch_once(listen, TEN)


def test_insecure_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with listening(tmp_path, ListenConfig(Security(insecure=True)), "0.0.0.0") as address:
        assert watch_once(address, TEN).insecure
    port = address.rpartition(":")[2]
    assert [r.message for r in caplog.records if "--insecure" in r.message] == [
        f"--insecure: nothing is encrypted, and whoever reaches 0.0.0.0:{port} can send as any host and see everything"
    ]
