# SPDX-License-Identifier: Apache-2.0
"""Perfetto's own format: protobuf, one packet an event."""

from collections.abc import Iterable, Mapping
from typing import IO

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackEvent
from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

from netmon.trace.writer import Detail, Instant, Slice

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
