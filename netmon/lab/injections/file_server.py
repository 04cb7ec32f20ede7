# SPDX-License-Identifier: Apache-2.0
"""A file server: python -I -S file_server.py ADDRESS PORT. It takes what is uploaded, and sends as much as is requested
(netmon.lab.trainers.transfers). Standard library only. Serves until SIGTERM."""

import socket
import sys
import threading

_PIECE, _ORDER = 1 << 20, 9


def _serve(connection: socket.socket) -> None:
    with connection:
        order = connection.recv(_ORDER, socket.MSG_WAITALL)
        size, piece = int.from_bytes(order[1:], "big"), bytes(_PIECE)
        if order[:1] == b"u":
            taken = bytearray(_PIECE)
            while connection.recv_into(taken):
                pass
            return
        while size > 0:
            size -= connection.send(piece[:size])


def main() -> None:
    """Serve."""
    with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            threading.Thread(target=_serve, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main()
