# SPDX-License-Identifier: Apache-2.0
"""Agent and collector of other versions understand each other, held against a frozen copy of older messages."""

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor
from grpc_tools import protoc

from collector.agent_checks import read_hello
from netmon.errors import WireError
from netmon.wire import netmon_pb2
from netmon.wire.batches import OLDEST_AGENT, decode_batch, misunderstanding

FROZEN = Path(__file__).parents[1] / "data/proto"


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The messages as they were, in a world of their own."""
    out = tmp_path_factory.mktemp("proto") / "set"
    assert not protoc.main(["protoc", f"-I{FROZEN}", f"--descriptor_set_out={out}", str(FROZEN / "netmon-3.proto")])
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    prefix = f"{file.package}." if file.package else ""
    return {
        message.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(prefix + message.name))
        for message in file.message_type
    }


def fields(descriptor: Descriptor) -> dict[int, tuple[str, int, bool]]:
    return {field.number: (field.name, field.type, field.is_repeated) for field in descriptor.fields}


def opening(messages: Any, version: int = 3) -> Any:
    message = messages["AgentMessage"]()
    hello = message.hello
    hello.schema_version, hello.host, hello.session, hello.bucket_ns = version, "h0", "s1", 10_000
    hello.clock.mono_ns, hello.clock.utc_ns = 1, 1_700_000_000_000_000_000
    hello.interfaces.add(index=1, name="eth0", capacity_bps=10**9, hook_rx="tc", hook_tx="tc", mtu=1500)
    return message


NOW = {name: getattr(netmon_pb2, name) for name in ("AgentMessage", "Hello", "Batch")}


def test_fields_keep_their_numbers_and_types_for_ever(older):
    for name, message in older.items():
        now = netmon_pb2.DESCRIPTOR.message_types_by_name[name]
        numbers = fields(now)
        for number, field in fields(message.DESCRIPTOR).items():
            reserved = any(start <= number < end for start, end in _reserved(now))
            assert reserved or numbers[number] == field, f"{name}.{field[0]}"


def _reserved(descriptor: Descriptor) -> list[tuple[int, int]]:
    proto = descriptor_pb2.DescriptorProto()
    descriptor.CopyToProto(proto)
    return [(one.start, one.end) for one in proto.reserved_range]


def test_an_older_agent_is_understood(older):
    sent = opening(older).SerializeToString()
    hello = read_hello(netmon_pb2.AgentMessage.FromString(sent))
    assert (hello.host, hello.bucket_ns, hello.schema_version) == ("h0", 10_000, 3)
    batch = older["AgentMessage"]()
    batch.batch.sequence, batch.batch.horizon_ns = 1, 5
    batch.batch.clock.mono_ns, batch.batch.clock.utc_ns = 2, 1_700_000_000_000_000_001
    batch.batch.buckets.bucket_ns = 10_000
    batch.batch.ledger.add(interface=1, direction=0, time_ns=4, nic_bytes=7)
    received = decode_batch(netmon_pb2.AgentMessage.FromString(batch.SerializeToString()).batch)
    assert (received.sequence, received.ledger[0].nic_bytes) == (1, 7)


def test_an_older_collector_reads_what_is_sent_now(older):
    message = opening(NOW)
    message.hello.proof, message.hello.oldest_reader = "p" * 20, OLDEST_AGENT
    there = older["AgentMessage"].FromString(message.SerializeToString())
    assert (there.hello.host, there.hello.schema_version, len(there.hello.interfaces)) == ("h0", 3, 1)
    acknowledged = older["Acknowledgement"].FromString(
        netmon_pb2.Acknowledgement(sequence=9, bucket_ns=5, worker="w").SerializeToString()
    )
    assert acknowledged.sequence == 9


@pytest.mark.parametrize(
    ("version", "oldest_reader", "words"),
    [
        (3, 0, ""),
        (4, 3, ""),  # it has something new, and does without it
        (4, 4, "update the collector"),
        (4, 0, "update the collector"),
        (2, 0, "update the agent"),
        (2, 2, "update the agent"),
    ],
)
def test_who_cannot_be_understood_is_told_what_to_do(version, oldest_reader, words):
    message = opening(NOW, version)
    message.hello.oldest_reader = oldest_reader
    assert words in misunderstanding(message.hello, 3)
    assert bool(misunderstanding(message.hello, 3)) == bool(words)
    if words:
        with pytest.raises(WireError, match=f"hello of h0: schema version {version} .*{words}"):
            read_hello(message)
    else:
        assert read_hello(message).schema_version == version
