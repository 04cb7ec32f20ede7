# SPDX-License-Identifier: Apache-2.0
"""The end of the collector's Advise call that asks."""

import json
from typing import Any

import grpc

from netmon.errors import WireError
from netmon.wire import netmon_pb2
from netmon.wire.netmon_pb2_grpc import CollectorStub
from netmon.wire.secure import open_channel
from netmon.wire.security import PLAIN, Security
from netmon.wire.watch import VIEWERS, UnreachableError, reason, split

_TIMEOUT_S = 60
_OPTIONS = (("grpc.max_receive_message_length", -1),)
_LISTS = ("advice", "jobs", "unjudged", "shares", "unknown_links", "pairs", "links")


def get_advice(addresses: str, job: str = "", security: Security = PLAIN) -> dict[str, Any]:
    """Advice (netmon.dl.sharing.advice_text.document) from a collector, or from several workers (`A,B`); blocks.

    job: only of this one and those that share its links; "": of all. Raises UnreachableError where a collector does not
    answer or none has anything to report, WireError where it answers nonsense, UsageError and CertificateError where
    none may be asked.
    """
    answers, last = [], UnreachableError("")
    for address in split(addresses):
        try:
            answers.append(_one(address, job, security))
        except _NothingError as error:
            last = error
    if not answers:
        raise last
    return answers[0] if len(answers) == 1 else _together(answers)


class _NothingError(UnreachableError):
    """It has nothing to report."""


def _one(address: str, job: str, security: Security) -> dict[str, Any]:
    with open_channel(address, security, _OPTIONS, *VIEWERS) as channel:
        try:
            query = netmon_pb2.AdviceQuery(job=job)
            answer = CollectorStub(channel).Advise(query, timeout=_TIMEOUT_S)  # type: ignore[no-untyped-call]
            found = json.loads(answer.document)
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call) and error.code() == grpc.StatusCode.NOT_FOUND:
                raise _NothingError(str(error.details())) from None
            raise UnreachableError(f"cannot reach the collector at {address}: {reason(error, security)}") from None
        except ValueError as error:
            raise WireError(f"what the collector at {address} answers is no JSON: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(found.get(name), list) for name in _LISTS):
        raise WireError(f"what the collector at {address} answers is no advice")
    if not isinstance(found.get("names", {}), dict):
        raise WireError(f"the names in what the collector at {address} answers are none")
    return found


def _together(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Each job and link is with one worker."""
    span = {"begin_ns": min(one["begin_ns"] for one in answers), "end_ns": max(one["end_ns"] for one in answers)}
    names = {job: name for one in answers for job, name in one.get("names", {}).items()}
    return {**span, "names": names, **{name: [item for one in answers for item in one[name]] for name in _LISTS}}
