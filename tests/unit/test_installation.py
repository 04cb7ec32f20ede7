# SPDX-License-Identifier: Apache-2.0
"""What doctor says of a running installation, and what clients say of certificates that are not valid any more."""

import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from authorities import expired, pki, security
from collector_thread import collecting
from snapshot_example import example
from test_tls import listening
from waiting import free_port

from collector.settings import ListenConfig
from netmon import __version__
from netmon.cli import main
from netmon.commands.doctor_installation import check_installation, installation_checks, named
from netmon.kernel.machine import Check, Status
from netmon.views import RankPair, Selection, Snapshot, Totals
from netmon.wire.security import PLAIN, Identity, Role, Security
from netmon.wire.watch import UnreachableError, watch_once

ANN = security(Role.FULL, "ann")


def checked(snapshot: Snapshot, now_ns: int | None = None) -> dict[str, Check]:
    return {check.name: check for check in installation_checks(snapshot, now_ns or snapshot.time_ns)}


PAIRS = (
    RankPair(0, 1, 10_000_000, 94e9, 0, 1.0, "RDMA", "mlx5_0"),
    RankPair(1, 0, 30_000_000, 12e9, 0, 0.0, "sockets", "eth0"),
)


def test_of_each_job_it_is_said_which_ways_are_seen() -> None:
    def said(pairs: tuple[RankPair, ...], sent: int = 1) -> Check:
        job = example().jobs[0]
        ranks = tuple(replace(rank, dl_tx_bytes=sent) for rank in job.ranks)
        return checked(replace(example(), jobs=(replace(job, pairs=pairs, ranks=ranks),)))["job resnet"]

    assert said(PAIRS).status is Status.OK
    assert said(PAIRS).detail == "2 rank pairs over NCCL, bytes exact, transferred by RDMA (mlx5_0), sockets (eth0)"
    hidden = said((PAIRS[0], replace(PAIRS[1], transport="", interface="")))
    assert hidden.status is Status.NOTE
    assert hidden.detail.endswith("transferred by RDMA (mlx5_0); how 75 % of them went is not seen")
    assert "unknown size" in said((replace(PAIRS[0], missed=3),)).detail
    assert "every packet is counted" in said(()).detail
    assert said((), 0).status is Status.LIMITED


def well() -> Snapshot:
    snapshot = example()
    hosts = tuple(
        replace(
            *(host,),
            connected=True,
            age_ns=300_000_000,
            clock_error_ns=20_000,
            clock_source="exchange",
            clock_offset_ns=0,
            bucket_ns=1,
            stream_ns=1,
            cost=replace(host.cost, warnings=0, spool_bytes=0, cpu_fraction=0.01),
            agent_version=__version__,
        )
        for host in snapshot.hosts
    )
    nothing = {"overflow_bytes": 0, "lost_kernel_bytes": 0, "lost_agent_bytes": 0, "coverage": 1.0}
    links = tuple(replace(link, **nothing) for link in snapshot.links)
    totals = Totals(hosts=4, jobs=1, ranks=3)
    return replace(snapshot, hosts=hosts, links=links, warnings=(), version=__version__, totals=totals)


def test_an_installation_that_does_well_is_told_so() -> None:
    assert {check.status for check in checked(well()).values()} == {Status.OK}


def test_what_is_wrong_is_named_with_what_to_do() -> None:
    snapshot = well()
    first, second, *rest = snapshot.hosts
    first = replace(first, connected=False)
    second = replace(
        *(second,),
        age_ns=9_000_000_000,
        clock_error_ns=5_000_000,
        clock_offset_ns=10**10,
        bucket_ns=2,
        agent_version="0.0.9",
        cost=replace(second.cost, spool_bytes=10**8, warnings=2, cpu_fraction=0.5),
    )
    link = replace(snapshot.links[0], coverage=0.9, nic_bytes=10**9, overflow_bytes=10**6, lost_kernel_bytes=1)
    said = ("cannot write to /data: No space left on device",)
    found = checked(
        replace(snapshot, hosts=(first, second, *rest), links=(link, *snapshot.links[1:]), warnings=said),
        snapshot.time_ns + 3_600_000_000_000,
    )
    wrong = {name for name, check in found.items() if check.status is not Status.OK}
    assert wrong == {
        *("versions", "agents", "age of data", "collector's clock", "clocks", "hosts' UTC", "coverage", "overflow"),
        *("lost kernel", "resolution", "spools", "agents' CPU", "marks", "collector says"),
    }
    assert "agents of 0.0.9: h1" in found["versions"].detail
    assert found["agents"].detail == "3 of 4 are connected; gone: h0"
    assert "--flows" in found["overflow"].advice
    assert all(found[name].advice for name in wrong - {"collector says"})


def test_many_names_are_few_and_a_number() -> None:
    assert named(["a"]) == "a"
    assert named([f"h{number}" for number in range(9)]) == "h0, h1, h2, h3 and 5 more"


def test_a_collector_nobody_has_connected_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"unix:{tmp_path}/socket"
    assert main(["doctor", "--collector", address]) == 1
    assert "is `netmon collector` running" in capsys.readouterr().out
    with collecting(address, tmp_path / "data"), grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(60)
        assert main(["doctor", "--collector", address, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    states = {check["name"]: check["status"] for check in told["checks"]}
    assert states["versions"] == "ok"
    assert states["agents"] == "missing"


def test_certificates_are_looked_at_from_both_ends(tmp_path: Path) -> None:
    with listening(tmp_path, ListenConfig(security(Role.COLLECTOR, "c"))) as address:
        found = {check.name: check for check in check_installation(address, ANN)}
        assert found["our certificate"].detail.startswith("of viewer ann, until 20")
        assert found[f"certificate of {address}"].detail.startswith("collector c, until 20")
        assert found[f"collector {address}"].status is Status.OK
        (refused,) = check_installation(address, PLAIN)
        assert refused.status is Status.MISSING
    old = expired(pki("ours"), Identity(Role.FULL, "old"), 3)
    (ours, *_) = check_installation(address, Security(old))
    assert "of viewer old has expired on 20" in ours.detail


@contextlib.contextmanager
def expired_server() -> Iterator[str]:
    """A collector's port as it is when its certificate has expired while it runs."""
    folder = expired(pki("ours"), Identity(Role.COLLECTOR, "old"), 2)
    key, certificate, authority = ((folder / name).read_bytes() for name in ("tls.key", "tls.crt", "ca.crt"))
    with ThreadPoolExecutor(1) as pool:
        server, address = grpc.server(pool), f"127.0.0.1:{free_port()}"
        server.add_secure_port(address, grpc.ssl_server_credentials([(key, certificate)], authority, True))
        server.start()
        try:
            yield address
        finally:
            server.stop(0).wait()


def test_an_expired_certificate_of_the_other_end_is_named() -> None:
    named_ = r"the certificate of collector old has expired on 20.* UTC: renew it with"
    with expired_server() as address:
        with pytest.raises(UnreachableError, match=named_):
            watch_once(address, Selection(), ANN)
        found = {check.name: check for check in check_installation(address, ANN)}
    assert found[f"certificate of {address}"].status is Status.MISSING
    assert "has expired" in found[f"certificate of {address}"].detail
