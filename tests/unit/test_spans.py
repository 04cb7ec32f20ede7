# SPDX-License-Identifier: Apache-2.0
"""Iterations as spans and verdicts as events: a real collector, the real exporter, an HTTP server that reads them."""

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import grpc
import pytest
from collector_stream import UTC, Host, hello
from collector_thread import collecting

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from waiting import free_port

from collector.metrics.spans import open_spans
from netmon.errors import UsageError
from netmon.views import Cause, Verdict
from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_batch, encode_hello
from netmon.wire.netmon_pb2_grpc import CollectorStub
from netmon.wire.security import PLAIN

SLOW = Verdict("train", 1, UTC, UTC + 300_000_000, 300_000_000, 1, 1, Cause.CROSS, "iperf3")


class Taker(HTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.taken: list[bytes] = []


class Handler(BaseHTTPRequestHandler):
    server: Taker

    def do_POST(self) -> None:
        self.server.taken.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def taker() -> Iterator[Taker]:
    server = Taker()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_iterations_are_spans_and_verdicts_their_events(tmp_path: Path, taker: Taker) -> None:
    spans = open_spans(f"http://127.0.0.1:{taker.server_port}/v1/traces", PLAIN)
    address, host, told = f"unix:{tmp_path}/socket", Host(), netmon_pb2.AgentMessage
    messages = [told(hello=encode_hello(hello())), *(told(batch=encode_batch(host.batch())) for _ in range(12))]
    with collecting(address, tmp_path / "data", spans=spans), grpc.insecure_channel(address) as channel:
        for _ in CollectorStub(channel).Stream(iter(messages), wait_for_ready=True):
            pass
        spans.judged(SLOW)
    found = [
        span
        for data in taker.taken
        for resource in ExportTraceServiceRequest.FromString(data).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    ranks = [span for span in found if span.name == "rank"]
    whole = {span.span_id: span for span in found if span.name == "train iteration"}
    assert len(ranks) >= 3
    assert all(rank.parent_span_id in whole for rank in ranks)
    for rank in ranks:
        of = {one.key: one.value for one in rank.attributes}
        assert rank.end_time_unix_nano - rank.start_time_unix_nano == 240_000_000
        assert (of["host.name"].string_value, of["netmon.job"].string_value) == ("h0", "train")
        assert of["netmon.dl_tx_bytes"].int_value > 0
    (event,) = [event for span in whole.values() for event in span.events]
    assert {one.key: one.value.string_value for one in event.attributes}["netmon.culprit"] == "iperf3"


def test_that_nobody_takes_them_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    spans = open_spans(f"http://127.0.0.1:{free_port()}/v1/traces", PLAIN, timeout_s=0.1)
    with caplog.at_level(logging.WARNING):
        for number in range(2):
            spans.judged(replace(SLOW, iteration=number))
        spans.close()
    assert len([line for line in caplog.messages if "cannot send spans" in line]) == 1


@pytest.mark.parametrize("url", ["localhost:4318", "http://10.0.0.1:4318/v1/traces", "ftp://localhost"])
def test_where_they_cannot_go(url: str) -> None:
    with pytest.raises(UsageError, match="cannot send spans to"):
        open_spans(url, PLAIN)
