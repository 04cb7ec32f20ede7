# SPDX-License-Identifier: Apache-2.0
"""Open-loop web-search traffic: flows arrive as a Poisson process, each on a TCP connection of its own.

python -m netmon.lab.traffic.websearch receive ADDRESS:PORT
python -m netmon.lab.traffic.websearch send ADDRESS:PORT --load-bps 800e6 --rate-bps 1e9 --seed 1
"""

import argparse
import asyncio
import contextlib
import json
import signal
import socket
import time
from typing import Any

import numpy as np

from netmon.lab.traffic.flow_sizes import PUBLISHED_RATE_BPS, FlowSizes

_CHUNK = bytes(256 * 1024)
_DRAWN_AT_ONCE = 1000


class Sender:
    """Sends flows to one address until it is stopped, and knows what it really sent."""

    def __init__(self, address: tuple[str, int], load_bps: float, rate_bps: float, seed: int) -> None:
        """load_bps: payload offered. Sizes are scaled with the link: rate_bps / 10 Gbit/s."""
        self._address = address
        self._scale = rate_bps / PUBLISHED_RATE_BPS
        self._sizes = FlowSizes(scale=self._scale)
        self._mean_gap = self._sizes.mean * 8 / load_bps
        self._random = np.random.default_rng(seed)
        self.flows_begun = self.flows_ended = self.flows_failed = self.bytes_offered = self.bytes_sent = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Start flows when they are due, whether or not earlier ones have ended."""
        flows: set[asyncio.Task[None]] = set()
        due = time.monotonic()
        while not stop.is_set():
            gaps = self._random.exponential(self._mean_gap, _DRAWN_AT_ONCE)
            sizes = self._sizes.draw(self._random, _DRAWN_AT_ONCE)
            for gap, size in zip(gaps.tolist(), sizes.tolist(), strict=True):
                due += gap
                if await _stopped(stop, due):
                    break
                flow = asyncio.ensure_future(self._send(size))
                flows.add(flow)
                flow.add_done_callback(flows.discard)
        for flow in flows:
            flow.cancel()
        await asyncio.gather(*flows, return_exceptions=True)

    async def _send(self, size: int) -> None:
        loop = asyncio.get_running_loop()
        self.flows_begun += 1
        self.bytes_offered += size
        with socket.socket() as connection:
            connection.setblocking(False)
            try:
                await loop.sock_connect(connection, self._address)
                for start in range(0, size, len(_CHUNK)):
                    part = memoryview(_CHUNK)[: size - start]
                    await loop.sock_sendall(connection, part)
                    self.bytes_sent += len(part)
            except OSError:
                self.flows_failed += 1
            else:
                self.flows_ended += 1

    def report(self) -> dict[str, Any]:
        """What was sent. bytes_sent: handed to TCP; of a flow that was cut off, whole chunks only."""
        counts = ("flows_begun", "flows_ended", "flows_failed", "bytes_offered", "bytes_sent")
        return {**{name: getattr(self, name) for name in counts}, "size_scale": self._scale}


async def _stopped(stop: asyncio.Event, due: float) -> bool:
    wait = due - time.monotonic()
    if wait > 0:
        with contextlib.suppress(asyncio.TimeoutError):  # before Python 3.11 not the built-in TimeoutError
            await asyncio.wait_for(stop.wait(), wait)
    else:
        await asyncio.sleep(0)
    return stop.is_set()


async def _receive(address: tuple[str, int]) -> None:
    loop = asyncio.get_running_loop()
    scratch = bytearray(1 << 18)

    async def drain(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):  # a flow that was cut off at the end of the run
            while await loop.sock_recv_into(connection, scratch):
                pass

    with socket.create_server(address, backlog=1024) as server:
        server.setblocking(False)
        print("listening", flush=True)
        flows: set[asyncio.Task[None]] = set()
        while True:
            connection, _ = await loop.sock_accept(server)
            connection.setblocking(False)
            flow = asyncio.ensure_future(drain(connection))
            flows.add(flow)
            flow.add_done_callback(flows.discard)


async def _send(sender: Sender) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await sender.run(stop)
    print(json.dumps(sender.report()), flush=True)


def main() -> None:
    """Receive until killed, or send until SIGTERM and print a report as one line of JSON."""
    parser = argparse.ArgumentParser(description="web-search cross traffic")
    parser.add_argument("role", choices=("receive", "send"))
    parser.add_argument("address", help="of the receiver, ADDRESS:PORT")
    parser.add_argument("--load-bps", type=float, default=800e6)
    parser.add_argument("--rate-bps", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    host, _, port = args.address.rpartition(":")
    if args.role == "receive":
        asyncio.run(_receive((host, int(port))))
    else:
        asyncio.run(_send(Sender((host, int(port)), args.load_bps, args.rate_bps, args.seed)))


if __name__ == "__main__":
    main()
