# SPDX-License-Identifier: Apache-2.0
"""Agent and collector of other versions understand each other, or are told what to do."""

import pytest

from collector.agent_checks import read_hello
from netmon.errors import WireError
from netmon.wire import netmon_pb2
from netmon.wire.batches import OLDEST_AGENT, misunderstanding


def opening(version: int) -> netmon_pb2.AgentMessage:
    message = netmon_pb2.AgentMessage()
    hello = message.hello
    hello.schema_version, hello.host, hello.session, hello.bucket_ns = version, "h0", "s1", 10_000
    hello.clock.mono_ns, hello.clock.utc_ns = 1, 1_700_000_000_000_000_000
    hello.interfaces.add(index=1, name="eth0", capacity_bps=10**9, hook_rx="tc", hook_tx="tc", mtu=1500)
    return message


@pytest.mark.parametrize(
    ("version", "oldest_reader", "words"),
    [
        (1, 0, ""),
        (2, 1, ""),  # it has something new, and does without it
        (2, 2, "update the collector"),
        (2, 0, "update the collector"),
        (0, 0, "update the agent"),
    ],
)
def test_who_cannot_be_understood_is_told_what_to_do(version, oldest_reader, words):
    message = opening(version)
    message.hello.oldest_reader = oldest_reader
    assert words in misunderstanding(message.hello, OLDEST_AGENT)
    assert bool(misunderstanding(message.hello, OLDEST_AGENT)) == bool(words)
    if words:
        with pytest.raises(WireError, match=f"hello of h0: schema version {version} .*{words}"):
            read_hello(message)
    else:
        assert read_hello(message).schema_version == version
