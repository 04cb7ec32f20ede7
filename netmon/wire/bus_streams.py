# SPDX-License-Identifier: Apache-2.0
"""The streams on the bus: made by whichever worker comes first, and how much waits in them.

Who may publish to one subject of a stream may not wipe the others: no stream takes the header Nats-Rollup, with which
one message stands in the place of all (of the subject, or of the whole stream).
"""

from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import BadRequestError, NotFoundError

from netmon.wire.bus import BATCHES, HELLOS, LEAST_PAYLOAD, STREAM, STREAM_BYTES, Bus, BusSettings


async def make_streams(bus: Bus) -> bool:
    """Make the stream and the bucket where they are missing, and leave them as they are where they exist.

    But for the header, which is closed where an older worker has left it open. Whether something was missing. Raises
    BusError.
    """
    with bus.errors("make the stream on"):
        new = [await _made(bus, config) for config in (_batches(bus.settings), _hellos(bus.settings))]
        most = (await bus.jetstream.stream_info(STREAM)).config.max_bytes or 0
        await bus.jetstream.publish(STREAM_BYTES, str(max(most, 0)).encode())
        return any(new)


async def depth(bus: Bus) -> tuple[int, int]:
    """Batches that wait on the bus, and their bytes, of all hosts. Raises BusError."""
    with bus.errors("ask"):
        state = (await bus.jetstream.stream_info(STREAM)).state
        return state.messages, state.bytes


def _batches(settings: BusSettings) -> StreamConfig:
    return StreamConfig(
        name=STREAM,
        subjects=[f"{BATCHES}.*"],
        retention=RetentionPolicy.WORK_QUEUE,
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,
        discard_new_per_subject=True,
        max_msgs_per_subject=settings.most_batches,
        max_bytes=settings.most_bytes,
        max_msg_size=LEAST_PAYLOAD,
        num_replicas=settings.replicas,
        allow_rollup_hdrs=False,
    )


def _hellos(settings: BusSettings) -> StreamConfig:
    """A bucket as nats-py makes them, but for the header."""
    return StreamConfig(
        name=f"KV_{HELLOS}",
        subjects=[f"$KV.{HELLOS}.>"],
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,
        max_msgs_per_subject=1,
        deny_delete=True,
        allow_direct=True,
        num_replicas=settings.replicas,
        allow_rollup_hdrs=False,
    )


async def _made(bus: Bus, config: StreamConfig) -> bool:
    """Whether it was missing."""
    assert config.name
    try:
        found, new = await bus.jetstream.stream_info(config.name), False
    except NotFoundError:
        try:
            found, new = await bus.jetstream.add_stream(config), True
        except BadRequestError:  # another worker made it first, with other settings
            found, new = await bus.jetstream.stream_info(config.name), True
    if found.config.allow_rollup_hdrs:
        await bus.jetstream.update_stream(found.config.evolve(allow_rollup_hdrs=False))
    return new
