# SPDX-License-Identifier: Apache-2.0
"""`netmon doctor --collector`: a running installation, from this machine's certificate to the hosts' last bytes."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

import grpc

from netmon.dl.transfers import in_words
from netmon.errors import CertificateError, NetmonError
from netmon.kernel.machine import Check, Status
from netmon.own_module import to_install
from netmon.units import format_bytes, format_duration
from netmon.version import __version__
from netmon.views import FULL_COVERAGE, LAG_NS, HostView, LinkView, Selection, Snapshot
from netmon.wire.secure import open_channel, server_certificate
from netmon.wire.security import Security, is_unix
from netmon.wire.tls_files import SOON, read_tls
from netmon.wire.watch import VIEWERS, UnreachableError, reason, split, watch_once

# --- What a snapshot says of how an installation does.

_MOST_NAMED = 4
_MOST_JOBS = 32
_UNCERTAIN_NS = 1_000_000  # a clock whose bound is larger tells little of who waited for whom
_LARGE_SPOOL = 16_000_000
_LARGE_CPU = 0.1  # of one core
_OFF_NS = 1_000_000_000
_LITTLE = 10_000  # bytes of a link of which a packet or two may be missing for a moment
_PATHS = (
    (
        "overflow_bytes",
        "more flows at a time than the agent has slots for",
        "give those agents a larger --flows, or watch fewer interfaces",
    ),
    (
        "lost_kernel_bytes",
        "records came faster than the agent read them",
        "give the agents more CPU (`netmon top` shows what they use), or a wider --bucket",
    ),
    (
        "lost_agent_bytes",
        "a spool was full, or a batch could not be sent",
        "look at the agents' logs; the collector, its disk or the network was away for too long",
    ),
)


def installation_checks(snapshot: Snapshot, now_ns: int) -> list[Check]:
    """In the order in which one would look. now_ns: UTC here; snapshot: of all hosts and links."""
    return [
        _versions(snapshot),
        *_hosts(snapshot),
        *_clocks(snapshot, now_ns),
        _coverage(snapshot.links),
        *_losses(snapshot.links),
        *_pressure(snapshot.hosts),
        *_jobs(snapshot),
        *_transports(snapshot),
        *_warnings(snapshot),
    ]


def named(names: Sequence[str]) -> str:
    """A few of them, and how many more there are."""
    shown = ", ".join(names[:_MOST_NAMED])
    return shown if len(names) <= _MOST_NAMED else f"{shown} and {len(names) - _MOST_NAMED} more"


def _versions(snapshot: Snapshot) -> Check:
    ours, theirs = __version__, snapshot.version or "unknown: it is older than this program"
    others: dict[str, list[str]] = {}
    for host in snapshot.hosts:
        if host.connected and host.agent_version != snapshot.version:
            others.setdefault(host.agent_version or "unknown", []).append(host.host)
    if not others and ours == snapshot.version:
        return Check("versions", Status.OK, f"{ours} everywhere")
    agents = "; ".join(f"agents of {version}: {named(hosts)}" for version, hosts in sorted(others.items()))
    detail = f"the collector is {theirs}, this program {ours}" + (f"; {agents}" if agents else "")
    return Check("versions", Status.NOTE, detail, "collectors first, then agents, one host at a time")


def _hosts(snapshot: Snapshot) -> Iterator[Check]:
    connected = [host for host in snapshot.hosts if host.connected]
    gone = [host.host for host in snapshot.hosts if not host.connected]
    if not snapshot.hosts:
        advice = "start `netmon agent --collector ADDR` on the hosts; its log says why it cannot connect"
        yield Check("agents", Status.MISSING, "no agent has connected", advice)
        return
    if gone:
        advice = "what they count waits in their spools; there: systemctl status netmon-agent"
        detail = f"{len(connected)} of {len(snapshot.hosts)} are connected; gone: {named(gone)}"
        yield Check("agents", Status.LIMITED, detail, advice)
    else:
        yield Check("agents", Status.OK, f"{len(connected)} connected")
    if not connected:
        return
    late = sorted((host for host in connected if host.age_ns > LAG_NS), key=lambda host: -host.age_ns)
    oldest = format_duration(round(max(host.age_ns for host in connected), -6))
    if late:
        advice = "the collector, the network to it, or those hosts are busy: look at netmon_acknowledgement_seconds"
        detail = f"{len(late)} of {len(connected)} lag, by up to {oldest}: {named([host.host for host in late])}"
        yield Check("age of data", Status.LIMITED, detail, advice)
    else:
        yield Check("age of data", Status.OK, f"at most {oldest}")


def _clocks(snapshot: Snapshot, now_ns: int) -> Iterator[Check]:
    off_ns = abs(now_ns - snapshot.time_ns)
    if off_ns > _OFF_NS:
        detail = f"the collector's clock and this machine's differ by {format_duration(round(off_ns, -6))}"
        yield Check("collector's clock", Status.LIMITED, detail, "run chrony or another NTP client on both")
    connected = [host for host in snapshot.hosts if host.connected]
    bad = [host for host in connected if host.clock_error_ns > _UNCERTAIN_NS or not host.clock_source]
    if bad:
        worst = format_duration(max(host.clock_error_ns for host in bad))
        detail = f"{len(bad)} of {len(connected)} hosts are known to {worst} only: {named([host.host for host in bad])}"
        advice = "who waited for whom is known with that error: an agent that has just started needs a few seconds, "
        yield Check("clocks", Status.LIMITED, detail, f"{advice}else look for a network that delays one way")
    elif connected:
        worst = format_duration(max(host.clock_error_ns for host in connected))
        yield Check("clocks", Status.OK, f"every host's is known to {worst} or better")
    far = [host.host for host in connected if abs(host.clock_offset_ns) > _OFF_NS]
    if far:
        detail = f"more than a second off, which is corrected: {named(far)}"
        yield Check("hosts' UTC", Status.NOTE, detail, "run chrony or another NTP client there")


def _coverage(links: Sequence[LinkView]) -> Check:
    low = [
        link
        for link in links
        if link.coverage < FULL_COVERAGE and link.nic_bytes * (1 - link.coverage) > _LITTLE  # nan: not known
    ]
    if not links:
        return Check("coverage", Status.UNKNOWN, "no link is known", "")
    if low:
        worst = sorted(low, key=lambda link: link.coverage)
        names = [f"{link.host} {link.interface} {link.direction.name.lower()} {link.coverage:.2%}" for link in worst]
        advice = "below it stands where the rest went; what is nowhere bypasses the hook (RDMA, XDP_REDIRECT): `netmon "
        advice += "doctor` on that host"
        return Check("coverage", Status.LIMITED, f"{len(low)} of {len(links)} links: {named(names)}", advice)
    return Check("coverage", Status.OK, f"{len(links)} links: every byte that the NICs counted has a flow")


def _losses(links: Sequence[LinkView]) -> Iterator[Check]:
    lost = False
    for name, why, advice in _PATHS:
        hit = [link for link in links if getattr(link, name)]
        if hit:
            lost = True
            total = format_bytes(sum(getattr(link, name) for link in hit))
            hosts = named(sorted({link.host for link in hit}))
            yield Check(
                name.removesuffix("_bytes").replace("_", " "), Status.LIMITED, f"{total}: {why} ({hosts})", advice
            )
    if links and not lost:
        yield Check("losses", Status.OK, "none since the agents' start")


def _pressure(hosts: Sequence[HostView]) -> Iterator[Check]:
    coarse = [host.host for host in hosts if host.connected and host.bucket_ns > host.stream_ns]
    if coarse:
        advice = "the collector or the way to it takes less than they send: a second worker, or a wider --stream-bucket"
        yield Check("resolution", Status.LIMITED, f"coarser than it should be: {named(coarse)}", advice)
    full = [host for host in hosts if host.cost.spool_bytes > _LARGE_SPOOL]
    if full:
        most = format_bytes(max(host.cost.spool_bytes for host in full))
        detail = f"up to {most} wait to be stored: {named([host.host for host in full])}"
        yield Check("spools", Status.LIMITED, detail, "the same; what does not fit is counted as lost")
    dear = [host for host in hosts if host.connected and host.cost.cpu_fraction > _LARGE_CPU]
    if dear:
        most_cpu = max(host.cost.cpu_fraction for host in dear)
        detail = f"up to {most_cpu:.0%} of a core: {named([host.host for host in dear])}"
        yield Check("agents' CPU", Status.NOTE, detail, "a wider --bucket costs less")
    if warned := [host.host for host in hosts if host.cost.warnings]:
        detail = f"marks or messages led to nothing: {named(warned)}"
        yield Check("marks", Status.NOTE, detail, "the agents' logs say which")


def _jobs(snapshot: Snapshot) -> Iterator[Check]:
    totals = snapshot.totals
    if totals.behind_ranks:
        yield Check("jobs", Status.NOTE, f"{totals.behind_ranks} ranks have stopped while others of their job went on")
    elif totals.jobs:
        yield Check("jobs", Status.OK, f"{totals.jobs} known, {totals.ranks} ranks")
    else:
        advice = "iterations are seen once a job trains on a watched host: `netmon top`"
        yield Check("jobs", Status.NOTE, "none is training, or none is recognised", advice)


def _transports(snapshot: Snapshot) -> Iterator[Check]:
    """Of each job, by which ways its ranks send, as far as it is seen."""
    for job in snapshot.jobs[:_MOST_JOBS]:
        name = f"job {job.name or job.job}"
        if job.pairs:
            said, exact = in_words(job.pairs)
            advice = (
                "" if exact else "an agent that saw NCCL begin misses nothing; NVLink and shared memory need no proxy"
            )
            yield Check(name, Status.OK if exact else Status.NOTE, said, advice)
            continue
        sent = sum(max(0, rank.dl_tx_bytes) for rank in job.ranks)
        if sent:
            yield Check(name, Status.OK, "its ranks send over interfaces that are watched: every packet is counted")
        elif job.ranks:
            advice = "NVLink, shared memory and transfers that GPUs begin themselves are not seen"
            yield Check(name, Status.LIMITED, "nothing is seen of what its ranks send each other", advice)


def _warnings(snapshot: Snapshot) -> Iterator[Check]:
    for line in snapshot.warnings:
        yield Check("collector says", Status.LIMITED, line)
    if (more := snapshot.totals.warnings - len(snapshot.warnings)) > 0:
        yield Check("collector says", Status.LIMITED, f"{more} lines more: `netmon top --once`")


# --- doctor_installation

_WITHIN_S = 5.0
_READY = "netmon.Collector"


def check_installation(addresses: str, security: Security) -> list[Check]:
    """Everything that can be seen from here; blocks for some seconds at most where somebody does not answer.

    Raises UsageError where an address cannot be queried like this.
    """
    checks = list(_our_certificate(security.tls))
    servers = split(addresses)
    for address in servers:
        security.folder(address, "connect to")  # else it is refused below, as if nobody were there
        checks += _collector(address, security)
    if any(check.status is Status.MISSING for check in checks):
        return checks
    try:
        snapshot = watch_once(addresses, Selection(), security)
    except (UnreachableError, CertificateError) as error:
        return [*checks, Check("snapshot", Status.MISSING, str(error), "see the collector's log")]
    if snapshot.insecure:
        advice = "give both ends --tls (`netmon certificates` makes what it needs)"
        checks.append(Check("encryption", Status.LIMITED, "none: others on the network can listen", advice))
    return [*checks, *installation_checks(snapshot, time.time_ns())]


def _our_certificate(folder: Path | None) -> Iterator[Check]:
    if folder is None:
        return
    try:
        files = read_tls(folder, *VIEWERS)
    except CertificateError as error:
        yield Check("our certificate", Status.MISSING, str(error))
        return
    if not files.certificate:
        yield Check("our token", Status.OK, f"in {folder}; the collector knows until when")
        return
    from cryptography import x509

    ends = x509.load_pem_x509_certificate(files.certificate).not_valid_after_utc
    yield _expiry("our certificate", f"of {files.identity}", ends)


def _expiry(name: str, whose: str, ends: datetime) -> Check:
    left = ends - datetime.now(timezone.utc)
    detail = f"{whose}, until {ends:%Y-%m-%d %H:%M} UTC"
    if left.total_seconds() <= 0:
        return Check(name, Status.MISSING, f"{detail}: it has expired", "renew it: netmon certificates DIR renew")
    if left < SOON:
        return Check(name, Status.LIMITED, f"{detail}: {left.days} days left", "netmon certificates DIR renew")
    return Check(name, Status.OK, f"{detail} ({left.days} days)")


def _collector(address: str, security: Security) -> Iterator[Check]:
    name = f"collector {address}"
    if security.tls and not is_unix(address):
        try:
            found = server_certificate(address, security.tls, _WITHIN_S)
        except NetmonError as error:
            yield Check(name, Status.MISSING, str(error), "is `netmon collector` running, and is this its address?")
            return
        yield _expiry(f"certificate of {address}", str(found.identity or "nobody we know"), found.ends)
    try:
        with open_channel(address, security, (), *VIEWERS) as channel:
            yield from _health(address, channel, security)
    except CertificateError as error:
        yield Check(name, Status.MISSING, str(error))


def _health(address: str, channel: grpc.Channel, security: Security) -> Iterator[Check]:
    name = f"collector {address}"
    try:
        from grpc_health.v1 import health_pb2, health_pb2_grpc
    except ImportError:
        yield Check(name, Status.UNKNOWN, f"cannot query its health: {to_install('metrics')}")
        return
    try:
        answer = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service=_READY), timeout=_WITHIN_S
        )
    except grpc.RpcError as error:
        if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNIMPLEMENTED:
            detail = "it does not say how it does: it is older, or without grpcio-health-checking"
            yield Check(name, Status.UNKNOWN, detail, "there: pip install 'netmon[metrics]'")
        else:
            with contextlib.suppress(NetmonError):
                yield Check(
                    name, Status.MISSING, reason(error, security, address), "is `netmon collector` running there?"
                )
        return
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        yield Check(name, Status.OK, "takes in what agents send")
    else:
        advice = "its log and /ready say why: most often its disk is full, or away"
        yield Check(name, Status.MISSING, "it takes nothing in now", advice)
