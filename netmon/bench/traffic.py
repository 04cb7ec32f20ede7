# SPDX-License-Identifier: Apache-2.0
"""Traffic that benchmarks send, as programs.

`python -m netmon.bench.traffic listen ADDRESS` · `python -m netmon.bench.traffic connect ADDRESS`: two ends of a TCP
connection send each other a burst in turn, then nothing for a while.
`python -m netmon.bench.traffic flood INTERFACE SOURCE_MAC DESTINATION_MAC DESTINATION COUNT PER_S`: new flows, as whole
frames: so many UDP frames, each a flow of its own from 10.0.0.0/16 (to which there is no way back); it prints how many.
"""

import random
import socket
import sys
import time

import numpy as np
import numpy.typing as npt

# --- Bursts.

PORT = 5301
LISTENING = "listening"
_BURST = bytes(200_000)
_REST_S = (0.06, 0.14)


def listen(address: str) -> None:
    """Answer bursts with bursts until the other end goes away."""
    with socket.create_server((address, PORT)) as server:
        print(LISTENING, flush=True)
        connection, _ = server.accept()
        with connection:
            while _receive(connection):
                connection.sendall(_BURST)


def connect(address: str) -> None:
    """Send bursts without end; the rests between them are of different lengths, as those of computing are."""
    pause = random.Random(address)
    with socket.create_connection((address, PORT)) as connection:
        while True:
            time.sleep(pause.uniform(*_REST_S))
            connection.sendall(_BURST)
            if not _receive(connection):
                return


def _receive(connection: socket.socket) -> bool:
    """Wait for a whole burst; False where the other end has gone."""
    left = len(_BURST)
    while left:
        received = len(connection.recv(min(left, 1 << 16)))
        if not received:
            return False
        left -= received
    return True


# --- Floods of new flows.

FRAME_BYTES = 100  # bytes of a frame


def frames(source: bytes, destination: bytes, address: str, begin: int, count: int) -> npt.NDArray[np.uint8]:
    """(count, FRAME_BYTES), from number `begin` on: UDP to port 9 of the address.

    Sources go through addresses, then ports.
    """
    table = np.zeros((count, FRAME_BYTES), np.uint8)
    number = np.arange(begin, begin + count, dtype=np.uint32)
    table[:, 0:14] = np.frombuffer(destination + source + b"\x08\x00", np.uint8)
    head = bytes((0x45, 0, 0, FRAME_BYTES - 14, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 0)) + socket.inet_aton(address)
    table[:, 14:34] = np.frombuffer(head, np.uint8)
    table[:, 28], table[:, 29] = number >> 8 & 0xFF, number & 0xFF
    ports = 1024 + (number >> 16)
    table[:, 34], table[:, 35] = ports >> 8, ports & 0xFF
    table[:, 36:40] = np.frombuffer(bytes((0, 9, 0, FRAME_BYTES - 34)), np.uint8)
    words = table[:, 14:34].reshape(count, 10, 2).astype(np.uint32)
    total = (words[:, :, 0] << 8 | words[:, :, 1]).sum(axis=1)
    total = (total & 0xFFFF) + (total >> 16)
    checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    table[:, 24], table[:, 25] = checksum >> 8, checksum & 0xFF
    return table


def flood(interface: str, source: str, destination: str, address: str, count: str, per_s: str) -> None:
    """Blocks until all are sent, about count / per_s seconds."""
    macs = [bytes.fromhex(mac.replace(":", "")) for mac in (source, destination)]
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
        sender.bind((interface, 0))
        begin, sent = time.monotonic(), 0
        while sent < int(count):
            due = min(int(count), int((time.monotonic() - begin) * int(per_s)) + 1)
            some = min(due - sent, 1000)
            block = frames(macs[0], macs[1], address, sent, some).tobytes()
            for i in range(some):
                sender.send(block[i * FRAME_BYTES : (i + 1) * FRAME_BYTES])
            sent += some
            time.sleep(0.002)
    print(sent)


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "flood":
        flood(*words)
    else:
        {"listen": listen, "connect": connect}[what](*words)
