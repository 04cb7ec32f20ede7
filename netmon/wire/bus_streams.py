# SPDX-License-Identifier: Apache-2.0
"""What the bus keeps: the streams of batches and of introductions, and which sessions it refuses."""

import contextlib

from nats.errors import NoRespondersError
from nats.js.api import DiscardPolicy, RawStreamMsg, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import BadRequestError, BucketNotFoundError, NotFoundError

from netmon.errors import WireError
from netmon.marks import printable
from netmon.wire.bus import (
    BATCHES,
    HELLOS,
    LEAST_PAYLOAD,
    STREAM,
    STREAM_BYTES,
    Bus,
    BusSettings,
    hello_subject,
    host_of,
    name_of,
    token,
)


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


# --- What the bus keeps of sessions alongside their batches: who has introduced itself, and who is not taken in.
#
# bucket netmon-hellos HOST.SESSION AgentMessage with the introduction (netmon.wire.bus) HOST.SESSION.refused why no
# worker takes it in, in words
#
# A refusal stays there, so that an agent which connects again publishes nothing that nobody will take. It is lifted by
# the next worker that takes the host.

_STREAM = f"KV_{HELLOS}"
_REFUSED = "refused"
_LONGEST_REASON = 500


def refusal_subject(host: str, session: str) -> str:
    """Where it stands why a session is not taken in; its agent listens there too."""
    return f"{hello_subject(host, session)}.{_REFUSED}"


def reason_of(data: bytes) -> str:
    """Of a refusal as it stands there."""
    return printable(data.decode("utf-8", "replace")[:_LONGEST_REASON])


async def refuse(bus: Bus, host: str, session: str, why: str) -> None:
    """Tell the agent of a session, now and later, that nobody takes it in. Raises BusError."""
    with bus.errors("refuse a session on"):
        await bus.jetstream.publish(refusal_subject(host, session), why[:_LONGEST_REASON].encode())


async def refusal(bus: Bus, host: str, session: str) -> str:
    """Why a session is not taken in; empty: nobody has refused it. Raises BusError."""
    with bus.errors("ask"):
        try:
            found = await _own(bus, refusal_subject(host, session))
        except (NotFoundError, BucketNotFoundError):
            return ""
        return reason_of(found.data or b"")


async def _own(bus: Bus, subject: str) -> RawStreamMsg:
    """The last message of a subject, asked for in a way that servers can allow for this subject alone."""
    try:
        return await bus.jetstream.get_last_msg(_STREAM, subject, direct=True)
    except NoRespondersError:  # the bucket is older
        return await bus.jetstream.get_last_msg(_STREAM, subject)


async def lift_refusals(bus: Bus, host: str, session: str = "*") -> None:
    """Of a host's sessions, or of one. Raises BusError."""
    subject = f"$KV.{HELLOS}.{token(host)}.{session if session == '*' else token(session)}.{_REFUSED}"
    with bus.errors("take a host on"):
        await bus.jetstream.purge_stream(_STREAM, subject=subject)


async def introduced(bus: Bus) -> dict[str, list[str]]:
    """The sessions that have introduced themselves, by host. Raises BusError."""
    found: dict[str, list[str]] = {}
    with bus.errors("list the sessions on"):
        info = await bus.jetstream.stream_info(_STREAM, subjects_filter=f"$KV.{HELLOS}.*.*")
    for subject in info.state.subjects or {}:
        host, _, session = subject.removeprefix(f"$KV.{HELLOS}.").partition(".")
        with contextlib.suppress(WireError):
            found.setdefault(host_of(f"{BATCHES}.{host}"), []).append(name_of(session))
    return found
