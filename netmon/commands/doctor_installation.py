# SPDX-License-Identifier: Apache-2.0
"""`netmon doctor --collector`: a running installation, from this machine's certificate to the hosts' last bytes."""

import contextlib
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import grpc

from netmon.errors import CertificateError, NetmonError
from netmon.installation import installation_checks
from netmon.kernel.probe.check import Check, Status
from netmon.views import Selection
from netmon.wire.secure import open_channel
from netmon.wire.security import Security, is_unix
from netmon.wire.server_certificate import server_certificate
from netmon.wire.tls_files import SOON, read_tls
from netmon.wire.watch import VIEWERS, UnreachableError, reason, split, watch_once

_WITHIN_S = 5.0
_READY = "netmon.Collector"


def check_installation(addresses: str, security: Security) -> list[Check]:
    """Everything that can be seen from here; blocks for some seconds at most where somebody does not answer.

    Raises UsageError where an address cannot be asked like this.
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
        yield Check(name, Status.UNKNOWN, "cannot ask how it does: pip install 'netmon[metrics]'")
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
