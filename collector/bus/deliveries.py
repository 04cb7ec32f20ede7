# SPDX-License-Identifier: Apache-2.0
"""What the bus holds for one host: every message that is not acknowledged, in the order in which it came.

The stream keeps a message until it is acknowledged. The consumer that hands them out is therefore nothing to be kept:
it is in the servers' memory, and is made anew whenever something is odd, which brings everything again that is not
acknowledged.
"""

import asyncio
import contextlib
import hashlib
import json
import time
from collections import deque

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import APIError, NotFoundError

from netmon.wire.bus import LEAST_PAYLOAD, STREAM, Bus, BusError, batch_subject, token

_AT_A_TIME = 16  # messages asked for
_ASK_S, _ALIVE_S, _SILENT_S = 30.0, 3.0, 10.0
_AGAIN_S = 3600.0  # what is not acknowledged comes again: everything comes from a new consumer long before
_GONE_S = 300.0  # a consumer that nobody asks is removed
_LONGEST_NAME = 200
_OF = "~"  # stands in no token
_ANSWER_S = 5.0
_NOT_ALONE = 10100  # filtered consumer not unique on workqueue stream
_ON, _OVER = ("100",), ("404", "408")
_OVER_TEXTS = ("Batch Completed", "Message Size Exceeds MaxBytes", "Exceeded")


class Deliveries:
    """One consumer, of one worker. Lives on one event loop."""

    def __init__(self, bus: Bus, host: str, worker: str) -> None:
        """`begin` makes the consumer. Its name is this worker's: who has lost the host asks in vain."""
        self._bus, self._host = bus, host
        self.name = consumer_name(host, worker)
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{self.name}"
        self._subscription: Subscription | None = None
        self._come: deque[Msg] = deque()
        self._news = asyncio.Event()
        self._requested = 0  # messages that may still come
        self._handed_out = 0  # by the consumer, that have come
        self._left = 0  # that it had not handed out when the last one came
        self._received_s = 0.0
        self._broken = ""

    async def begin(self) -> None:
        """From the oldest message that is not acknowledged; nobody else consumes them then. Raises BusError."""
        await self._unsubscribe()
        self._come.clear()
        self._requested, self._handed_out, self._left, self._broken = 0, 0, 0, ""
        subject = batch_subject(self._host)
        with self._bus.errors(f"consume {subject} from"):
            with contextlib.suppress(NotFoundError):
                await self._bus.jetstream.delete_consumer(STREAM, self.name)
            consumer = ConsumerConfig(
                durable_name=self.name,
                filter_subject=subject,
                deliver_policy=DeliverPolicy.ALL,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=_AGAIN_S,
                max_ack_pending=-1,
                max_deliver=-1,
                mem_storage=True,
                inactive_threshold=_GONE_S,
            )
            try:
                await self._bus.jetstream.add_consumer(STREAM, consumer)
            except APIError as error:
                if error.err_code != _NOT_ALONE:
                    raise
                await self._remove_others()
                await self._bus.jetstream.add_consumer(STREAM, consumer)
            inbox = self._bus.client.new_inbox()
            self._subscription = await self._bus.client.subscribe(
                inbox, cb=self._came, pending_bytes_limit=0, pending_msgs_limit=0
            )
            self._inbox = inbox

    async def _remove_others(self) -> None:
        """Of a worker that is gone, or does not know yet that it has lost the host."""
        stem, first, names = consumer_name(self._host), 0, [""]
        while names:
            request = json.dumps({"offset": first}).encode()
            answer = await self._bus.client.request(f"$JS.API.CONSUMER.NAMES.{STREAM}", request, timeout=_ANSWER_S)
            names = json.loads(answer.data).get("consumers") or []
            first += len(names)
            for name in names:
                if name == stem or name.startswith(f"{stem}{_OF}"):
                    with contextlib.suppress(NotFoundError):
                        await self._bus.jetstream.delete_consumer(STREAM, name)

    async def next(self) -> Msg:
        """The next message. Raises BusError: `begin` again, also after `interrupt`."""
        while True:
            if self._broken:
                raise BusError(self._broken)
            if self._come:
                return self._come.popleft()
            self._news.clear()
            if not self._requested:
                await self._request_more()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), _ALIVE_S)
            if time.monotonic() - self._received_s > _SILENT_S:
                self._broken = f"the bus says nothing about {self._host} for {_SILENT_S:g} s"

    @property
    def behind(self) -> bool:
        """Whether messages wait that have not been handed out, as far as is known without asking."""
        return bool(self._come or self._left)

    async def drained(self) -> bool:
        """Whether there is nothing that has not been handed out. Raises BusError."""
        with self._bus.errors("ask"):
            info = await self._bus.jetstream.consumer_info(STREAM, self.name)
        return not (info.num_pending or self._come or self._broken)

    def interrupt(self, why: str) -> None:
        """Whoever waits in `next` begins again."""
        self._broken = self._broken or why
        self._news.set()

    async def end(self, ours: bool) -> None:
        """The consumer goes if it is ours, what it has handed out stays on the bus. Does not raise."""
        await self._unsubscribe()
        if not ours:
            return
        with contextlib.suppress(Exception):
            if self._bus.client.is_connected:
                await self._bus.jetstream.delete_consumer(STREAM, self.name)

    async def _unsubscribe(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription:
            with contextlib.suppress(Exception):  # the connection may be gone
                await subscription.unsubscribe()

    async def _request_more(self) -> None:
        request = {
            "batch": _AT_A_TIME,
            "max_bytes": 2 * LEAST_PAYLOAD,
            "expires": int(_ASK_S * 1e9),
            "idle_heartbeat": int(_ALIVE_S * 1e9),
        }
        self._requested, self._received_s = _AT_A_TIME, time.monotonic()
        with self._bus.errors("ask"):
            await self._bus.client.publish(self._subject, json.dumps(request).encode(), self._inbox)

    async def _came(self, message: Msg) -> None:
        self._received_s = time.monotonic()
        status = (message.headers or {}).get("Status")
        if not status:
            self._handed_out += 1
            # What the consumer has handed out while the connection was gone is not handed out again by itself.
            about = message.metadata
            self._left = about.num_pending
            if about.sequence.consumer == self._handed_out:
                self._come.append(message)
                self._requested = max(0, self._requested - 1)
            else:
                self._broken = self._broken or f"messages of {self._host} got lost on their way"
        elif status not in _ON:
            text = (message.headers or {}).get("Description", "")
            self._requested = 0
            if status not in _OVER and not any(phrase in text for phrase in _OVER_TEXTS):
                self._broken = self._broken or f"the consumer of {self._host} is gone: {status} {text}"
        self._news.set()


def consumer_name(host: str, worker: str = "") -> str:
    """HOST~WORKER; a host's name that is too long stands there as a number. Without a worker, how all of it begin."""
    name = token(host)
    stem = name if len(name) <= _LONGEST_NAME else hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    return f"{stem}{_OF}{token(worker)}" if worker else stem
