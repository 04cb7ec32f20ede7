# SPDX-License-Identifier: Apache-2.0
"""What the bus keeps of sessions alongside their batches: who has introduced itself, and who is not taken in.

    bucket netmon-hellos   HOST.SESSION            AgentMessage with the introduction (netmon.wire.bus)
                           HOST.SESSION.refused    why no worker takes it in, in words

A refusal stays there, so that an agent which connects again publishes nothing that nobody will take. It is lifted by
the next worker that takes the host.
"""

import contextlib

from nats.errors import NoRespondersError
from nats.js.api import RawStreamMsg
from nats.js.errors import BucketNotFoundError, NotFoundError

from netmon.errors import WireError
from netmon.marks import printable
from netmon.wire.bus import BATCHES, HELLOS, Bus, hello_subject, host_of, name_of, token

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
