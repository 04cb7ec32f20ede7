# SPDX-License-Identifier: Apache-2.0
"""The kinds of cross traffic: how each is received, sent and accounted for."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_WEB_SEARCH = (sys.executable, "-m", "netmon.lab.traffic.websearch")


@dataclass(frozen=True)
class Offer:
    """What one sender offers to one receiver. load_bps: payload, over all its flows."""

    address: str
    port: int
    load_bps: float
    rate_bps: int
    seed: int


@dataclass(frozen=True)
class Profile:
    """One kind of cross traffic. The sender stops at SIGTERM and prints its account."""

    description: str
    receiver: Callable[[Offer], list[str]]
    sender: Callable[[Offer], list[str]]
    listening: str  # what the receiver prints when it is ready, a regular expression
    account: Callable[[str], dict[str, Any]]  # the sender's output → at least bytes_sent


def _iperf_receiver(offer: Offer) -> list[str]:
    return ["iperf3", "--server", "--bind", offer.address, "--port", str(offer.port), "--forceflush"]


def _iperf_sender(offer: Offer) -> list[str]:
    target = ["--client", offer.address, "--port", str(offer.port)]
    return ["iperf3", *target, "--bitrate", str(round(offer.load_bps)), "--time", "86400", "--json"]


def _iperf_account(output: str) -> dict[str, Any]:
    report, _ = json.JSONDecoder().raw_decode(output[output.index("{") :])
    sent = report["end"]["sum_sent"]
    return {"bytes_sent": sent["bytes"], "seconds": sent["seconds"], "retransmits": sent["retransmits"]}


def _web_search_receiver(offer: Offer) -> list[str]:
    return [*_WEB_SEARCH, "receive", f"{offer.address}:{offer.port}"]


def _web_search_sender(offer: Offer) -> list[str]:
    load = ["--load-bps", str(offer.load_bps), "--rate-bps", str(offer.rate_bps), "--seed", str(offer.seed)]
    return [*_WEB_SEARCH, "send", f"{offer.address}:{offer.port}", *load]


def _web_search_account(output: str) -> dict[str, Any]:
    account: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return account


PROFILES = {
    "iperf": Profile(
        "one long TCP flow at a steady rate (iperf3)",
        _iperf_receiver,
        _iperf_sender,
        "Server listening",
        _iperf_account,
    ),
    "websearch": Profile(
        "TCP flows of web-search sizes, arriving as a Poisson process",
        _web_search_receiver,
        _web_search_sender,
        "listening",
        _web_search_account,
    ),
}
