# SPDX-License-Identifier: Apache-2.0
"""Messages as no honest agent sends them: changed in their bytes and in their fields, from a seed."""

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from collector_stream import MS, UTC, Host
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from netmon.errors import WireError
from netmon.records import COARSE, Batch, ClockExchange, Table
from netmon.wire import netmon_pb2
from netmon.wire.batches import encode_batch
from netmon.wire.tables import TABLES, split_tables

_BITS = [0, 1, 7, 8, 15, 16, 20, 31, 32, 33, 48, 53, 54, 59, 60, 61, 62, 63, 64]
NUMBERS = sorted({sign * (1 << bits) + near for bits in _BITS for sign in (-1, 1) for near in (-1, 0, 1)})
TEXTS = ["", ".", "..", "../x", "a/b", "\0", "\n", "\x1b[2J", "\u202ex", "é" * 90, "x" * 255, "x" * 300, "y" * 5_000]
TEXTS += ["🦊" * 64, "h0", "train", "eth0", "10.0.0.1", "::1", "host=h0", "'; drop", "%2e%2e", " ", "\ufffe", "%s%n"]
_COUNTS = [2, 3, 10, 100, 600, 5_000, 70_000]
_WIDE = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
_SIGNED = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
_FLOATS = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)


def coarse(table: Table) -> Table:
    """The same rows with a peak."""
    rows = np.zeros(len(table), COARSE)
    for name in table.dtype.names or ():
        rows[name] = table[name]
    rows["peak_bytes"], rows["busy_buckets"] = table["wire_bytes"], 1
    return rows


def set_cell(message: netmon_pb2.Tables, table: str, column: str, value: int, row: int = 0) -> None:
    """Another number in a table of a message that has this row; whether it may be there is all the same."""
    stored = [one.copy() for one in split_tables(message).tables]
    format_ = next(one for one in TABLES if one.name == table)
    place = list(format_.columns).index(column)
    cell = (value - format_.columns[column].least) % (1 << 64)
    stored[TABLES.index(format_)][place, row] = cell
    message.columns, message.deflated = b"".join(one.tobytes() for one in stored), False


def honest_batches(count: int, job: str = "train") -> list[Batch]:
    """Of one host, which trains: narrow and coarse rows, marks, ledger, counters, clock exchanges."""
    source, batches = Host(cross_from_ms=300), []
    for number in range(count):
        batch = source.batch()
        now = batch.horizon_ns
        exchange = ClockExchange(now - 2 * MS, UTC + now - MS, UTC + now - MS, now)
        batch = replace(batch, exchanges=(exchange,) if number % 3 == 0 else ())
        rows = batch.buckets[batch.buckets["bucket_start_ns"] % (5 * MS) == 0]
        flows = [replace(f, owner=replace(f.owner, job=job if f.owner.job else "")) for f in batch.flows]
        ranks = [replace(rank, job=job) for rank in batch.training.ranks]
        batch = replace(batch, flows=flows, training=replace(batch.training, ranks=ranks))
        batches.append(replace(batch, buckets=coarse(rows) if number % 2 else rows, bucket_ns=MS))
    return batches


class Mutator:
    """Changes messages; the same seed makes the same ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._batches = [encode_batch(batch) for batch in honest_batches(25)]

    def batches(self) -> Iterator[netmon_pb2.AgentMessage]:
        """A session's batches, most of them changed."""
        for batch in self._batches:
            message = netmon_pb2.AgentMessage(batch=batch)
            for changed in range(self.random.choice((1, 1, 2, 4))):
                if changed or self.random.random() < 0.8:
                    yield self.mutated(message)
            yield message

    def mutated(self, message: netmon_pb2.AgentMessage) -> netmon_pb2.AgentMessage:
        """A changed copy."""
        while True:
            copy = netmon_pb2.AgentMessage()
            copy.CopyFrom(message)
            for _ in range(self.random.choice((1, 1, 1, 2, 3, 8))):
                self._change_field(getattr(copy, copy.WhichOneof("message")))
            if self.random.random() < 0.3:
                try:
                    return netmon_pb2.AgentMessage.FromString(self._change_bytes(copy.SerializeToString()))
                except DecodeError:  # gRPC refuses it
                    continue
            return copy

    def _change_bytes(self, data: bytes) -> bytes:
        pick, changed = self.random, bytearray(data)
        for _ in range(pick.choice((1, 1, 2, 5))):
            at = pick.randrange(len(changed) + 1)
            kind = pick.randrange(4)
            if kind == 0 and at < len(changed):
                changed[at] = pick.randrange(256)
            elif kind == 1:
                del changed[at : at + pick.randrange(8)]
            elif kind == 2:
                changed[at:at] = pick.randbytes(pick.randrange(8))
            else:
                first = pick.randrange(len(changed) + 1)
                changed[at:at] = changed[first : first + pick.randrange(64)]
        return bytes(changed)

    def _change_table(self, message: netmon_pb2.Tables) -> None:
        """A number in one of the tables."""
        filled = [(format_, rows) for format_, rows in zip(TABLES, message.rows, strict=False) if rows]
        try:
            format_, rows = self.random.choice(filled)
            column = self.random.choice(list(format_.columns))
            set_cell(message, format_.name, column, self.random.choice(NUMBERS), self.random.randrange(rows))
        except (WireError, IndexError, ValueError):  # it is spoilt already
            return

    def _change_field(self, message: Message) -> None:
        if isinstance(message, netmon_pb2.Tables) and self.random.random() < 0.8:
            self._change_table(message)
            return
        field = self.random.choice(message.DESCRIPTOR.fields)
        repeated = field.is_repeated
        if repeated and (field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE or self.random.random() < 0.7):
            self._change_repeated(message, field)
        elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            if self.random.random() < 0.1:
                message.ClearField(field.name)
            else:
                self._change_field(getattr(message, field.name))
        elif repeated:
            getattr(message, field.name).append(self._value(field))
        else:
            setattr(message, field.name, self._value(field, getattr(message, field.name)))

    def _change_repeated(self, message: Message, field: FieldDescriptor) -> None:
        values, kind = getattr(message, field.name), self.random.random()
        if not values:
            if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                self._change_field(values.add())
        elif kind < 0.1:
            del values[self.random.randrange(len(values)) :]
        elif kind < 0.2:
            values.extend([values[self.random.randrange(len(values))]])
        elif kind < 0.21:
            values.extend([values[0]] * self.random.choice(_COUNTS))
        elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            self._change_field(self.random.choice(values))

    def _value(self, field: FieldDescriptor, now: object = None) -> object:
        pick, kind = self.random, field.cpp_type
        if kind == FieldDescriptor.CPPTYPE_STRING and field.type == FieldDescriptor.TYPE_BYTES:
            return self._change_bytes(now if isinstance(now, bytes) else b"")
        if kind == FieldDescriptor.CPPTYPE_STRING:
            return pick.choice(TEXTS)
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return not now
        if kind in _FLOATS:
            return pick.choice((0.0, -1.0, 1e308, float("nan"), float("inf"), -float("inf")))
        bits = 64 if kind in _WIDE else 32
        least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind in _SIGNED else (0, (1 << bits) - 1)
        near = isinstance(now, int) and pick.random() < 0.4
        number = now + pick.choice(NUMBERS[len(NUMBERS) // 4 : -len(NUMBERS) // 4]) if near else pick.choice(NUMBERS)
        return min(max(number, least), most)
