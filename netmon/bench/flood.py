# SPDX-License-Identifier: Apache-2.0
"""Floods of new flows, sent as whole frames.

As a program: INTERFACE SOURCE_MAC DESTINATION_MAC DESTINATION COUNT PER_S sends so many UDP frames, each a flow of its
own from 10.0.0.0/16 (to which there is no way back), and prints how many.
"""

import socket
import sys
import time

import numpy as np
import numpy.typing as npt

SIZE = 100  # bytes of a frame


def frames(source: bytes, destination: bytes, address: str, begin: int, count: int) -> npt.NDArray[np.uint8]:
    """(count, SIZE), from number `begin` on: UDP to port 9 of the address; sources go through addresses, then ports."""
    table = np.zeros((count, SIZE), np.uint8)
    number = np.arange(begin, begin + count, dtype=np.uint32)
    table[:, 0:14] = np.frombuffer(destination + source + b"\x08\x00", np.uint8)
    head = bytes((0x45, 0, 0, SIZE - 14, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 0)) + socket.inet_aton(address)
    table[:, 14:34] = np.frombuffer(head, np.uint8)
    table[:, 28], table[:, 29] = number >> 8 & 0xFF, number & 0xFF
    ports = 1024 + (number >> 16)
    table[:, 34], table[:, 35] = ports >> 8, ports & 0xFF
    table[:, 36:40] = np.frombuffer(bytes((0, 9, 0, SIZE - 34)), np.uint8)
    words = table[:, 14:34].reshape(count, 10, 2).astype(np.uint32)
    total = (words[:, :, 0] << 8 | words[:, :, 1]).sum(axis=1)
    total = (total & 0xFFFF) + (total >> 16)
    checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    table[:, 24], table[:, 25] = checksum >> 8, checksum & 0xFF
    return table


def main(interface: str, source: str, destination: str, address: str, count: str, per_s: str) -> None:
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
                sender.send(block[i * SIZE : (i + 1) * SIZE])
            sent += some
            time.sleep(0.002)
    print(sent)


if __name__ == "__main__":
    main(*sys.argv[1:])
