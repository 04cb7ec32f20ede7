# SPDX-License-Identifier: Apache-2.0
"""The bus between agents and workers, NATS JetStream: what is called how there, what a message says of itself.

    stream NETMON          netmon.v1.batch.HOST          AgentMessages with a batch, until a worker has stored them
    bucket netmon-hellos   HOST.SESSION                  AgentMessage with the introduction of a session
    down to an agent       netmon.v1.down.HOST.SESSION   Acknowledgement; its answers go where it asks for them
    the time               netmon.v1.clock.WORKER        ClockProbe → ClockEcho
    what waits             netmon.v1.waiting.HOST        any worker: how many of the host's batches the stream holds
    bucket netmon-hellos   stream-bytes                  how many bytes the stream may hold

The stream keeps every message until it is acknowledged, and refuses new ones when it is full, or one host has too many
there: nothing goes by itself.
HOST, SESSION and WORKER stand there as `token` writes them.
"""

import asyncio
import contextlib
import functools
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from netmon.errors import CertificateError, NetmonError, UnsupportedError, WireError
from netmon.marks import printable
from netmon.own_module import to_install
from netmon.wire.limits import MAX_COUNT, MAX_HOST, MAX_MESSAGE_BYTES, MAX_SESSION
from netmon.wire.secure import client_context, in_words
from netmon.wire.security import PLAIN, Role, Security

try:
    import nats
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.errors import NoRespondersError
    from nats.js import JetStreamContext
    from nats.js.api import DiscardPolicy, RawStreamMsg, RetentionPolicy, StorageType, StreamConfig
    from nats.js.errors import APIError, BadRequestError, BucketNotFoundError, NoStreamResponseError, NotFoundError
except ImportError as error:
    raise UnsupportedError(f"cannot use a bus: nats-py is not installed; {to_install('bus')}") from error

_log = logging.getLogger(__name__)

STREAM, HELLOS = "NETMON", "netmon-hellos"
BATCHES = "netmon.v1.batch"
STREAM_BYTES = f"$KV.{HELLOS}.stream-bytes"

LEAST_PAYLOAD = MAX_MESSAGE_BYTES + (64 << 10)
"""What the servers have to take in one message; NATS takes 1 MB unless it is set otherwise."""

LABEL_HEADER, KNOWN_HEADER = "Netmon-Batch", "Netmon-Acknowledged"
"""No message has an id of NATS' own: the servers compare ids over the whole stream, so that one host's could make
another host's batch count as a duplicate. Workers recognise what was published twice."""

_ANSWER_S = 5.0
_CONNECT_S = 3.0
_AGAIN_S = 0.5
_PING_S = 2.0  # two that are not answered: the connection is gone
_END = "end"
_NO_ROOM = 10047  # insufficient storage resources available
_NO_LEADER = 10008  # JetStream system temporarily unavailable


class BusError(NetmonError):
    """The bus does not answer, or refuses."""


class UnreachedError(BusError):
    """No server is there."""


class UnansweredError(BusError):
    """Servers are there, but most of them are not, or they are choosing which of them leads."""


@dataclass(frozen=True)
class BusSettings:
    """servers: nats://[USER:PASSWORD@]HOST:PORT each. The rest is for whoever makes the stream."""

    servers: tuple[str, ...]
    replicas: int = 1
    most_bytes: int = 4_000_000_000  # of all batches that wait
    most_batches: int = 20_000  # of one host: an hour of an agent that is not under pressure
    security: Security = PLAIN

    @property
    def name(self) -> str:
        """For a line of the log: without a password."""
        parts = [urlsplit(server) for server in self.servers]
        return ",".join(part._replace(netloc=part.netloc.rpartition("@")[2]).geturl() for part in parts)


# Names


def token(name: str) -> str:
    """A name as one part of a subject: letters, digits, - and _ stay, the rest is =XX by byte."""
    return quote(name, safe="").replace(".", "%2E").replace("~", "%7E").replace("%", "=")


def name_of(part: str) -> str:
    """The reverse of `token`."""
    return unquote(part.replace("=", "%"))


def batch_subject(host: str) -> str:
    return f"{BATCHES}.{token(host)}"


def down_subject(host: str, session: str) -> str:
    """Where a session's agent hears what its worker has to say."""
    return f"netmon.v1.down.{token(host)}.{token(session)}"


def up_subject(worker: str, host: str, session: str) -> str:
    return f"netmon.v1.up.{token(worker)}.{token(host)}.{token(session)}"


def clock_subject(worker: str) -> str:
    return f"netmon.v1.clock.{token(worker)}"


def waiting_subject(host: str) -> str:
    """Where an agent asks how many of its host's batches wait; `*`: of every host."""
    return f"netmon.v1.waiting.{host if host == '*' else token(host)}"


def hello_subject(host: str, session: str) -> str:
    """Where a session's introduction stands in the bucket of hellos."""
    return f"$KV.{HELLOS}.{token(host)}.{token(session)}"


# What a message says of itself


@dataclass(frozen=True)
class Label:
    """What a message of the stream says of itself, in its headers.

    Batches are published many at a time. Where one is refused, those behind it may be on the bus before it; so each
    says which one goes before it, and up to which the bus has acknowledged all that the agent had.
    """

    session: str
    sequence: int  # 0: the session's last word; previous is its last batch
    previous: int  # the batch before it; 0: it is the first that this agent knows of
    acknowledged: int = 0

    def headers(self) -> dict[str, str]:
        what = str(self.sequence) if self.sequence else _END
        return {LABEL_HEADER: f"{self.session}/{what}/{self.previous}", KNOWN_HEADER: str(self.acknowledged)}


def read_label(headers: dict[str, str] | None) -> Label:
    """The reverse of `headers`. Raises WireError."""
    try:
        session, what, previous = (headers or {}).get(LABEL_HEADER, "").rsplit("/", 2)
        label = Label(
            *(session, 0 if what == _END else int(what), int(previous)), int((headers or {}).get(KNOWN_HEADER, "0"))
        )
    except ValueError:
        raise WireError(f"its {LABEL_HEADER} is none of a netmon agent's") from None
    numbers = label.sequence, label.previous, label.acknowledged
    if not 0 < len(session) <= MAX_SESSION or min(numbers) < 0 or max(numbers) > MAX_COUNT:
        raise WireError(f"its {LABEL_HEADER} is none of a netmon agent's")
    if label.sequence and not label.previous < label.sequence:
        raise WireError(f"batch {label.sequence} is said to follow batch {label.previous}")
    return label


def host_of(subject: str) -> str:
    """Whose batches are published there. Raises WireError where no host's name can stand for it."""
    host = name_of(subject.removeprefix(f"{BATCHES}."))
    if not 0 < len(host) <= MAX_HOST or batch_subject(host) != subject:
        raise WireError(f"{subject} is no host's")
    return host


# The client

INBOX = "_INBOX"


class _TlsClient(Client):
    """Speaks TLS or not at all, whatever a server says of itself; for each connection with the files as they are."""

    def __init__(self, context: Callable[[], ssl.SSLContext]) -> None:
        """context(): of the files as they are. Raises CertificateError."""
        super().__init__()
        self._new_context = context

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection:
            if not info.get("tls_required"):
                raise nats.errors.Error("it speaks no TLS there: give no --tls, or configure the servers with it")
            with contextlib.suppress(CertificateError):  # while it is being renewed; or it is said at the next start
                self.options["tls"] = self._new_context()
        await super()._process_info(info, initial_connection)


def inbox(host: str) -> str:
    """How the subjects begin at which a host's agent, named by its token, hears answers; without one, a worker."""
    return f"{INBOX}.{host}" if host else INBOX


def bus_client(servers: Sequence[str], security: Security, host: str) -> tuple[Client, dict[str, Any]]:
    """A client that is not connected, and the options with which it is to be. Raises UsageError, CertificateError.

    host: as its token, of an agent; empty: a worker.
    """
    options: dict[str, Any] = {"inbox_prefix": inbox(host)}
    folders = [security.folder(server, "connect to the bus at") for server in servers]
    if folders[0] is None:
        return Client(), options
    context = functools.partial(client_context, folders[0], Role.AGENT if host else Role.COLLECTOR)
    return _TlsClient(context), options | {"tls": context()}


def may_answer(message: Msg) -> bool:
    """Whether an answer goes to where its sender listens, and not in our name to somebody else."""
    return message.reply.startswith(f"{INBOX}.")


# The connection


class Bus:
    """A connection to the servers, on one event loop. What does not get through raises BusError."""

    def __init__(self, client: Client, settings: BusSettings) -> None:
        """`connect` makes one."""
        self.client, self.settings = client, settings
        self.closing = False
        self._back: list[Callable[[], Awaitable[None]]] = []
        self.jetstream: JetStreamContext = client.jetstream(timeout=_ANSWER_S)

    @classmethod
    async def connect(
        cls,
        settings: BusSettings,
        name: str,
        lasting: bool = False,
        gone: Callable[[str], None] = lambda why: None,
        host: str = "",
    ) -> "Bus":
        """name: shown by the servers' tools. lasting: it waits for them, now and later; else gone(why) is called.

        host: whose agent it is; empty: a worker. Raises BusError where no server can be used, or reached and it does
        not wait; UsageError, CertificateError.
        """
        said_before = ""
        while lasting:
            try:
                return await cls._connect(settings, name, lasting, gone, host)
            except UnreachedError as error:
                if str(error) != said_before:
                    said_before = str(error)
                    _log.warning("%s; waiting for it", error)
            await asyncio.sleep(_AGAIN_S)
        return await cls._connect(settings, name, lasting, gone, host)

    @classmethod
    async def _connect(
        cls, settings: BusSettings, name: str, lasting: bool, gone: Callable[[str], None], host: str
    ) -> "Bus":
        trouble: list[str] = []
        made: list[Bus] = []

        async def failed(error: Exception) -> None:
            trouble[:] = [error_text(error)]

        async def lost() -> None:
            if lasting and made and not made[0].closing:
                _log.warning(
                    "the bus at %s is gone (%s); what was not acknowledged waits there", settings.name, *trouble
                )

        async def back() -> None:
            _log.warning("the bus at %s is back", settings.name)
            for call in made[0]._back if made else ():
                await call()

        async def closed() -> None:
            if not (made and made[0].closing):
                gone(trouble[0])

        trouble.append("connection lost")
        client, options = bus_client(settings.servers, settings.security, token(host))
        try:
            await asyncio.wait_for(
                client.connect(
                    list(settings.servers),
                    name=name,
                    error_cb=failed,
                    disconnected_cb=lost,
                    reconnected_cb=back,
                    closed_cb=closed,
                    allow_reconnect=lasting,
                    connect_timeout=int(_CONNECT_S),
                    max_reconnect_attempts=1,  # at first
                    reconnect_time_wait=0,
                    ping_interval=int(_PING_S),
                    max_outstanding_pings=2,
                    pending_size=8 * LEAST_PAYLOAD,
                    **options,
                ),
                _CONNECT_S * (1 + len(settings.servers)),
            )
        except (OSError, nats.errors.Error, asyncio.TimeoutError, ValueError) as error:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(client.close(), _AGAIN_S)  # of what has hardly been there
            why = error_text(error) if trouble == ["connection lost"] else trouble[0]
            why = in_words(why, settings.security) or why
            raise UnreachedError(f"cannot reach the bus at {settings.name}: {why}") from error
        client.options["max_reconnect_attempts"], client.options["reconnect_time_wait"] = -1, 0.5
        bus = cls(client, settings)
        made.append(bus)
        if client.max_payload < LEAST_PAYLOAD:
            await bus.close()
            raise BusError(
                f"cannot use the bus at {settings.name}: it takes {client.max_payload} bytes in a message; "
                "set max_payload: 20MB in the servers' configuration"
            )
        return bus

    def when_back(self, call: Callable[[], Awaitable[None]]) -> None:
        """call: after each time that a lasting connection was gone."""
        self._back.append(call)

    async def acknowledge(self, replies: Iterable[str]) -> None:
        """Messages that need not come again. Raises BusError."""
        with self.errors("acknowledge to"):
            for reply in replies:
                await self.client.publish(reply, b"+ACK")

    async def close(self) -> None:
        """What was published and not answered may be on the bus or not."""
        self.closing = True
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self.client.close(), _ANSWER_S)

    async def most_bytes(self) -> int | None:
        """That may wait on the bus; None: nobody has said. Raises BusError."""
        with self.errors("query"):
            try:
                found = await self.jetstream.get_last_msg(f"KV_{HELLOS}", STREAM_BYTES, direct=True)
                return int(found.data or b"0")
            except (NotFoundError, NoRespondersError, ValueError):
                return None

    async def query_waiting(self, host: str) -> int | None:
        """For an agent, which may not query the servers; None: there is no worker to answer. Raises BusError."""
        with self.errors("query"):
            try:
                return int((await self.client.request(waiting_subject(host), timeout=_ANSWER_S)).data)
            except (NoRespondersError, ValueError):
                return None

    async def waiting(self, host: str) -> int:
        """Batches of a host that wait on the bus. Raises BusError."""
        subject = batch_subject(host)
        with self.errors("query"):
            info = await self.jetstream.stream_info(STREAM, subjects_filter=subject)
        return (info.state.subjects or {}).get(subject, 0)

    async def hosts(self) -> frozenset[str]:
        """Every host that has introduced itself, or of which batches wait. Raises BusError."""
        found = set()
        with self.errors("list the hosts on"):
            for stream, prefix, rest in ((STREAM, f"{BATCHES}.", "*"), (f"KV_{HELLOS}", f"$KV.{HELLOS}.", "*.>")):
                info = await self.jetstream.stream_info(stream, subjects_filter=f"{prefix}{rest}")
                for subject in info.state.subjects or {}:
                    with contextlib.suppress(WireError):
                        part = subject.removeprefix(prefix).partition(".")[0]
                        found.add(host_of(f"{BATCHES}.{part}"))
        return frozenset(found)

    async def hello(self, host: str, session: str) -> tuple[bytes, int] | None:
        """A session's introduction, and its revision; None: there is none. Raises BusError."""
        with self.errors("read an introduction on"):
            try:
                found = await self.jetstream.get_last_msg(f"KV_{HELLOS}", hello_subject(host, session))
            except (NotFoundError, BucketNotFoundError):
                return None
            return found.data or b"", found.seq or 0

    async def forget_hello(self, host: str, session: str, revision: int) -> None:
        """Unless it was published again since. Raises BusError."""
        with self.errors("forget an introduction on"):
            subject = hello_subject(host, session)
            await self.jetstream.purge_stream(f"KV_{HELLOS}", seq=revision + 1, subject=subject)

    @contextlib.contextmanager
    def errors(self, action: str) -> Iterator[None]:
        """What the library raises as BusError: cannot ACTION the bus at …"""
        try:
            yield
        except (OSError, nats.errors.Error, asyncio.TimeoutError) as error:
            leaderless = isinstance(error, APIError) and error.err_code == _NO_LEADER
            kind = UnansweredError if leaderless or isinstance(error, asyncio.TimeoutError) else BusError
            raise kind(f"cannot {action} the bus at {self.settings.name}: {error_text(error)}") from error


def error_text(error: BaseException) -> str:
    if isinstance(error, APIError) and error.err_code == _NO_ROOM:
        return "it has not so much storage: give a smaller --bus-bytes, or the servers a larger max_file_store"
    if isinstance(error, NoStreamResponseError):
        return f"it has no stream {STREAM}: no worker has made it yet, or its servers are not ready"
    described = getattr(error, "description", None) or str(error) or type(error).__name__
    return str(described).removeprefix("nats: ")


# --- What the bus keeps: the streams of batches and of introductions.


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
    with bus.errors("query"):
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
    """Notify the agent of a session, now and later, that no worker accepts it. Raises BusError."""
    with bus.errors("refuse a session on"):
        await bus.jetstream.publish(refusal_subject(host, session), why[:_LONGEST_REASON].encode())


async def refusal(bus: Bus, host: str, session: str) -> str:
    """Why a session is not taken in; empty: nobody has refused it. Raises BusError."""
    with bus.errors("query"):
        try:
            found = await _own(bus, refusal_subject(host, session))
        except (NotFoundError, BucketNotFoundError):
            return ""
        return reason_of(found.data or b"")


async def _own(bus: Bus, subject: str) -> RawStreamMsg:
    """The last message of a subject, requested in a way that servers can allow for this subject alone."""
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
