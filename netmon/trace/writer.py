# SPDX-License-Identifier: Apache-2.0
"""What a trace file is made of, whichever format it has."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackEvent
from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

Detail = str | int | float | bool | None


@dataclass(frozen=True)
class Slice:
    """Something that took time on a lane. Slices of one lane lie one after the other, or one within the other."""

    start_ns: int  # UTC epoch
    end_ns: int
    name: str
    details: Mapping[str, Detail] = field(default_factory=dict)
    inner: tuple["Slice", ...] = ()  # in order of time, within its own
    arrows_out: tuple[int, ...] = ()  # numbers of arrows that begin here
    arrows_in: tuple[int, ...] = ()  # and that end here


@dataclass(frozen=True)
class Instant:
    """A moment on a lane."""

    time_ns: int  # UTC epoch
    name: str
    details: Mapping[str, Detail] = field(default_factory=dict)


class TraceWriter(Protocol):
    """A file that is being written. Times may come in any order from lane to lane, and in order within one."""

    def process(self, name: str) -> int:
        """A new group of lanes → its number."""
        ...

    def lane(self, process: int, name: str) -> int:
        """A new line of slices and moments → its number."""
        ...

    def counter(self, process: int, name: str, unit: str) -> int:
        """A new curve → its number."""
        ...

    def begin(self, lane: int, each: Slice) -> None:
        """A slice begins, within those of the lane that have not ended; its `inner` ones are for the caller."""
        ...

    def end(self, lane: int, each: Slice) -> None:
        """And ends: that of the lane which began last."""
        ...

    def instants(self, lane: int, instants: Iterable[Instant]) -> None:
        """Write these."""
        ...

    def values(self, counter: int, times_ns: Iterable[int], values: Iterable[float]) -> None:
        """Points of a curve; each holds until the next."""
        ...

    def close(self) -> None:
        """Complete the file."""
        ...


def draw(out: TraceWriter, lane: int, slices: Iterable[Slice]) -> None:
    """Write these with all that is inside; they and the inner ones lie one after the other."""
    for each in slices:
        out.begin(lane, each)
        draw(out, lane, each.inner)
        out.end(lane, each)


# --- Chrome's trace events.


class ChromeWriter:
    """See `TraceWriter`. Times are µs since begin_ns, for a number of JSON has no room for the ns of the epoch."""

    def __init__(self, file: IO[bytes], begin_ns: int) -> None:
        """begin_ns: UTC epoch that times count from; in the file `baseTimeNanoseconds`, as in profilers' traces."""
        self._file, self._begin_ns, self._tracks, self._first = file, begin_ns, dict[int, tuple[int, str]](), True
        self._file.write(f'{{"baseTimeNanoseconds":{begin_ns},"displayTimeUnit":"ns","traceEvents":[\n'.encode())

    def process(self, name: str) -> int:
        number = self._track(0, name)
        self._event(ph="M", pid=number, name="process_name", args={"name": name})
        self._event(ph="M", pid=number, name="process_sort_index", args={"sort_index": number})
        return number

    def lane(self, process: int, name: str) -> int:
        number = self._track(process, name)
        self._event(ph="M", pid=process, tid=number, name="thread_name", args={"name": name})
        self._event(ph="M", pid=process, tid=number, name="thread_sort_index", args={"sort_index": number})
        return number

    def counter(self, process: int, name: str, unit: str) -> int:
        return self._track(process, f"{name} [{unit}]")

    def begin(self, lane: int, each: Slice) -> None:
        where = {"pid": self._tracks[lane][0], "tid": lane}
        # As a viewer adds it up: what ends together has to end at the same number.
        length = self._us(each.end_ns) - self._us(each.start_ns)
        details = {"args": dict(each.details)} if each.details else {}
        self._event(ph="X", ts=self._us(each.start_ns), dur=length, name=each.name, **where, **details)
        for kind, arrows in (("s", each.arrows_out), ("f", each.arrows_in)):
            for arrow in arrows:
                end = {"bp": "e"} if kind == "f" else {}
                at = self._us(each.start_ns)
                self._event(ph=kind, id=arrow, cat="flow", name="flow", ts=at, **where, **end)

    def end(self, lane: int, each: Slice) -> None:
        """See `TraceWriter`: its beginning said so."""

    def instants(self, lane: int, instants: Iterable[Instant]) -> None:
        where = {"pid": self._tracks[lane][0], "tid": lane, "s": "t"}
        for each in instants:
            self._event(ph="i", ts=self._us(each.time_ns), name=each.name, args=dict(each.details), **where)

    def values(self, counter: int, times_ns: Iterable[int], values: Iterable[float]) -> None:
        process, name = self._tracks[counter]
        for time_ns, value in zip(times_ns, values, strict=True):
            self._event(ph="C", pid=process, name=name, ts=self._us(time_ns), args={"value": value})

    def close(self) -> None:
        self._file.write(b"\n]}\n")
        self._file.flush()

    def _track(self, process: int, name: str) -> int:
        number = len(self._tracks) + 1
        self._tracks[number] = (process or number, name)
        return number

    def _us(self, time_ns: int) -> float:
        return (time_ns - self._begin_ns) / 1000

    def _event(self, **event: Any) -> None:
        self._file.write(("" if self._first else ",\n").encode() + json.dumps(event, separators=(",", ":")).encode())
        self._first = False


# --- Perfetto's own format: protobuf, one packet an event.

_SEQUENCE = 1
_BOOTTIME, _REALTIME = 6, 1  # clocks by their numbers in the format


class PerfettoWriter:
    def __init__(self, file: IO[bytes], begin_ns: int) -> None:
        """begin_ns: UTC epoch of about the first event, by which the viewer knows the time of day."""
        self._file, self._builder, self._tracks = file, StreamingTraceProtoBuilder(file), 0
        packet = self._packet()
        packet.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        for clock in (_BOOTTIME, _REALTIME):
            packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=begin_ns)
        self._builder.write_packet(packet)

    def process(self, name: str) -> int:
        packet = self._described(name)
        packet.track_descriptor.process.pid = self._tracks
        packet.track_descriptor.process.process_name = name
        self._builder.write_packet(packet)
        return self._tracks

    def lane(self, process: int, name: str) -> int:
        packet = self._described(name)
        packet.track_descriptor.parent_uuid = process
        self._builder.write_packet(packet)
        return self._tracks

    def counter(self, process: int, name: str, unit: str) -> int:
        packet = self._described(name)
        packet.track_descriptor.parent_uuid = process
        packet.track_descriptor.counter.unit_name = unit
        self._builder.write_packet(packet)
        return self._tracks

    def begin(self, lane: int, each: Slice) -> None:
        begun = self._event(lane, each.start_ns, TrackEvent.TYPE_SLICE_BEGIN)
        begun.track_event.name = each.name
        begun.track_event.flow_ids.extend(each.arrows_out)
        begun.track_event.terminating_flow_ids.extend(each.arrows_in)
        _annotate(begun.track_event, each.details)
        self._builder.write_packet(begun)

    def end(self, lane: int, each: Slice) -> None:
        self._builder.write_packet(self._event(lane, each.end_ns, TrackEvent.TYPE_SLICE_END))

    def instants(self, lane: int, instants: Iterable[Instant]) -> None:
        for each in instants:
            packet = self._event(lane, each.time_ns, TrackEvent.TYPE_INSTANT)
            packet.track_event.name = each.name
            _annotate(packet.track_event, each.details)
            self._builder.write_packet(packet)

    def values(self, counter: int, times_ns: Iterable[int], values: Iterable[float]) -> None:
        packet = self._event(counter, 0, TrackEvent.TYPE_COUNTER)
        for time_ns, value in zip(times_ns, values, strict=True):
            packet.timestamp = time_ns
            packet.track_event.double_counter_value = value
            self._builder.write_packet(packet)

    def close(self) -> None:
        self._file.flush()

    def _described(self, name: str) -> TracePacket:
        self._tracks += 1
        packet = self._packet()
        packet.track_descriptor.uuid = self._tracks
        packet.track_descriptor.name = name
        return packet

    def _event(self, track: int, time_ns: int, kind: int) -> TracePacket:
        packet = self._packet()
        packet.timestamp = time_ns
        packet.track_event.type = kind
        packet.track_event.track_uuid = track
        return packet

    def _packet(self) -> TracePacket:
        packet = self._builder.create_packet()
        packet.trusted_packet_sequence_id = _SEQUENCE
        return packet


def _annotate(event: TrackEvent, details: Mapping[str, Detail]) -> None:
    for name, value in details.items():
        if value is None:
            continue
        note = event.debug_annotations.add(name=name)
        if isinstance(value, bool):
            note.bool_value = value
        elif isinstance(value, int):
            note.int_value = value
        elif isinstance(value, float):
            note.double_value = value
        else:
            note.string_value = value
