# SPDX-License-Identifier: Apache-2.0
"""The kernel path alone: the meter's programs on an interface, and nobody who drains them.

Run as a program, it attaches in its network namespace, says so, and stays until it is ended.
"""

import signal
import socket
import sys

from netmon.bench.rig import PROGRAMS, LoadedMeter
from netmon.kernel import bpf_calls

ATTACHED = "attached"


def main(interface: str) -> None:
    """Blocks until a signal comes; the links vanish with the process."""
    loaded, index = LoadedMeter(), socket.if_nametoindex(interface)
    for program, attach_type in (("tc_ingress", bpf_calls.TCX_INGRESS), ("tc_egress", bpf_calls.TCX_EGRESS)):
        bpf_calls.link_create(loaded.descriptors[PROGRAMS[program]], index, attach_type)
    print(ATTACHED, flush=True)
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1])
