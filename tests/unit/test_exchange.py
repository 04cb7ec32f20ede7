# SPDX-License-Identifier: Apache-2.0
"""The agent asks for the time, the real collector answers."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from sent_agent import Sent

from collector.host.align import ClockQuery, Exchanges, fit_exchanges
from netmon.agent import exchange
from netmon.agent.exchange import Clock, ClockExchanges
from netmon.kernel.timekeeping import clock_state, parse_tracking
from netmon.lab.process import Process
from netmon.lab.record import utc_minus_mono_ns


def collector(folder: Path) -> Process:
    """A collector, once it listens."""
    command = [sys.executable, "-m", "netmon", "collector", "--listen", f"unix:{folder}/socket"]
    process = Process("collector", [*command, "--data", str(folder / "data")], folder, notify=folder / "notify")
    process.wait_ready(60)
    return process


@contextlib.contextmanager
def asking(folder: Path, address: str = "socket") -> Iterator[ClockExchanges]:
    sent = Sent(folder / "spool", f"unix:{folder}/{address}")
    sent.start()
    try:
        yield sent.exchanges
    finally:
        sent.finish(0)


def wait_for(exchanges: ClockExchanges, count: int) -> list:
    taken, deadline = [], time.monotonic() + 60
    while len(taken) < count and time.monotonic() < deadline:
        time.sleep(0.02)
        taken += exchanges.take()
    return taken


def test_exchanges_bound_the_difference_of_two_readings_of_one_clock(tmp_path: Path) -> None:
    with asking(tmp_path) as exchanges, collector(tmp_path):  # it waits for a collector that comes later
        taken = wait_for(exchanges, 20)
    assert len(taken) >= 20
    now, heard = taken[-1].agent_received_ns, Exchanges()
    heard.add_exchanges(taken, now)
    (fit,) = fit_exchanges([ClockQuery(heard, now, None, 1.0)])
    truth = utc_minus_mono_ns()
    assert abs(fit.offset_ns - truth) <= fit.error_ns + 100_000  # two readings that are not one
    assert fit.error_ns < 50_000_000


def test_it_goes_on_with_a_collector_that_comes_back(tmp_path: Path) -> None:
    with asking(tmp_path) as exchanges:
        for _ in range(2):
            with collector(tmp_path):
                assert len(wait_for(exchanges, 4)) >= 4
            exchanges.take()


def test_it_ends_without_a_collector(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with asking(tmp_path):
        time.sleep(0.1)
    deadline = time.monotonic() + 30
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before


def test_a_collector_that_tells_no_time_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "_REFUSED_RETRY_S", 0.1)
    asked = []

    class Older(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
            if "Stream" in details.method:
                return grpc.stream_stream_rpc_method_handler(lambda messages, context: (b"" for _ in messages))
            asked.append(details.method)
            return None

    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Older(),))
    server.add_insecure_port(f"unix:{tmp_path}/older")
    server.start()
    try:
        with asking(tmp_path, "older") as exchanges:
            deadline = time.monotonic() + 60
            while len(asked) < 4 and time.monotonic() < deadline:
                time.sleep(0.02)
        assert len(asked) >= 4
        assert caplog.text.count("does not report the time") == 1
        assert exchanges.take() == []
    finally:
        server.stop(None).wait()


def test_who_hurries_is_not_kept_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange.Pace, "rest_s", lambda *_: 1000.0)
    with collector(tmp_path), asking(tmp_path) as exchanges:
        assert len(wait_for(exchanges, exchange.BURST)) == exchange.BURST
        exchanges.hurry()
        assert len(wait_for(exchanges, exchange.BURST)) == exchange.BURST


def test_a_clock_sample_says_what_the_kernel_says() -> None:
    sample, state = Clock().sample(), clock_state()
    assert abs(sample.offset_ns - utc_minus_mono_ns()) < 10_000_000
    assert 0 < sample.error_ns < 10_000_000
    assert (sample.utc_error_ns > 0) == (sample.discipline != "")
    if not state.synchronised:
        assert (sample.utc_error_ns, sample.discipline) == (0, "")


CHRONY = {  # what chronyd 4.3 has said
    "begun": "00000000,,0,0.000000000,0.000000000,0.000000000,0.000000000,0.000,0.000,0.000,1.000000000,1.000000000,"
    "0.0,Not synchronised",
    "alone": "7F7F0101,,1,1795278065.028997586,0.000000000,0.000000000,0.000000000,0.000,0.000,0.000,0.000000000,"
    "0.000000000,0.0,Normal",
    "kept": "7F000001,127.0.0.1,2,1795278093.388144452,-0.000001288,-0.000000041,0.000001356,0.081,-0.002,0.259,"
    "0.000005917,0.000001139,0.3,Normal",
}


def test_chronys_words_are_understood() -> None:
    state = parse_tracking(CHRONY["kept"])
    assert state
    assert (state.synchronised, state.discipline, state.source) == (True, "ntp", "chrony")
    assert abs(state.error_ns - (1_288 + 1_139 + 5_917 / 2)) <= 1
    phc = parse_tracking(CHRONY["kept"].replace("127.0.0.1", "PHC0"))
    assert phc
    assert phc.discipline == "ptp"
    assert parse_tracking("506 Cannot talk to daemon") is None


@pytest.mark.parametrize("told", ["begun", "alone"])
def test_a_clock_that_chrony_keeps_by_nobody_is_not_synchronised(told: str) -> None:
    state = parse_tracking(CHRONY[told])
    assert state
    assert (state.synchronised, state.discipline) == (False, "")
