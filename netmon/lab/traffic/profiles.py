# SPDX-License-Identifier: Apache-2.0
"""The kinds of cross traffic: how each is received, sent and accounted for."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SEND = (sys.executable, "-m", "netmon.lab.traffic.send")
_RECEIVE = (sys.executable, "-m", "netmon.lab.traffic.receive")


@dataclass(frozen=True)
class Offer:
    """What one sender offers to one receiver. load_bps: payload, over all its flows."""

    address: str
    port: int
    load_bps: float
    rate_bps: int
    seed: int
    file: Path | None = None  # of the profile "file"


@dataclass(frozen=True)
class Profile:
    """One kind of cross traffic. The sender stops at SIGTERM and prints its account."""

    receiver: Callable[[Offer], list[str]]
    sender: Callable[[Offer], list[str]]
    listening: str  # what the receiver prints when it is ready, a regular expression
    account: Callable[[str], dict[str, Any]]  # the sender's output → at least bytes_sent
    signalled: tuple[str, ...] = ()  # options with which the sender gets ready and begins at SIGUSR1; (): it cannot
    sending: str = ""  # what the sender prints before its first flow, with the moment (CLOCK_MONOTONIC); "": nothing


def _iperf_sender(offer: Offer) -> list[str]:
    target = ["--client", offer.address, "--port", str(offer.port)]
    return ["iperf3", *target, "--bitrate", str(round(offer.load_bps)), "--time", "86400", "--json"]


def _iperf_account(output: str) -> dict[str, Any]:
    report, _ = json.JSONDecoder().raw_decode(output[output.index("{") :])
    sent = report["end"]["sum_sent"]
    return {"bytes_sent": sent["bytes"], "seconds": sent["seconds"], "retransmits": sent["retransmits"]}


def _made(profile: str) -> Callable[[Offer], list[str]]:
    def options(offer: Offer) -> list[str]:
        load = ["--load-bps", str(offer.load_bps), "--rate-bps", str(offer.rate_bps), "--seed", str(offer.seed)]
        return ["--profile", profile, *load]

    return options


def _flows(load: Callable[[Offer], list[str]]) -> Profile:
    """load: the sender's options that say what it sends."""
    return Profile(
        lambda offer: [*_RECEIVE, f"{offer.address}:{offer.port}"],
        lambda offer: [*_SEND, f"{offer.address}:{offer.port}", *load(offer)],
        "listening",
        lambda output: dict(json.loads(output.strip().splitlines()[-1])),
        ("--hold",),
        r"sending since (\d+)",
    )


PROFILES = {
    "iperf": Profile(  # one long TCP flow at a constant rate
        lambda offer: ["iperf3", "--server", "--bind", offer.address, "--port", str(offer.port), "--forceflush"],
        _iperf_sender,
        "Server listening",
        _iperf_account,
    ),
    "websearch": _flows(_made("websearch")),  # flows of web-search sizes, at a consistent rate (Algorithm 1)
    "datamining": _flows(_made("datamining")),  # flows of data-mining sizes, at a consistent rate (Algorithm 1)
    "poisson": _flows(_made("poisson")),  # flows of web-search sizes, a Poisson process
    "burst": _flows(_made("burst")),  # web-search flows, 1 ms at 300 % every 10 ms (Algorithm 2)
    "file": _flows(lambda offer: ["--file", str(offer.file), "--repeat"]),
}
"""The algorithms are those of the thesis' appendix A.1."""
