# SPDX-License-Identifier: Apache-2.0
"""What an agent's introduction tells of the time before it."""

from dataclasses import replace

from collector_stream import clock, flows, hello

from netmon.agent.recent import SentFlows
from netmon.records import BUCKET, Batch, Owner, empty
from netmon.wire import netmon_pb2
from netmon.wire.batches import decode_hello, encode_batch, encode_hello


def test_an_introduction_has_the_flows_as_they_were_sent_last() -> None:
    sent = SentFlows()
    unknown = [replace(flow, owner=Owner()) for flow in flows()]
    for described in (unknown, flows()):
        message = encode_batch(Batch(1, clock(), 0, empty(BUCKET), described))
        sent.add(described, message.flows)
    sent.forget([flows()[1].flow_id, 99])
    found = decode_hello(netmon_pb2.AgentMessage.FromString(sent.introduce(encode_hello(hello()))).hello)
    assert list(found.flows) == [flows()[0], *flows()[2:]]
    assert found.interfaces == hello().interfaces
