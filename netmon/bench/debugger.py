# SPDX-License-Identifier: Apache-2.0
"""Program `PID SECONDS`: a debugger that is attached to a process, stops it for a moment, and lets it go on.

Standard library only. Its end, however it ends, leaves the process running: the kernel detaches it (ptrace(2)).
"""

import ctypes
import os
import sys
import time

_CONT, _SEIZE, _INTERRUPT = 7, 0x4206, 0x4207  # linux/ptrace.h
_WALL, _STOP_EVENT = 0x40000000, 128
_STOPPED_S, _LOOK_S = 0.5, 0.01
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)


def _ptrace(request: int, thread: int, data: int = 0) -> None:
    if _libc.ptrace(request, thread, None, data) < 0:
        raise OSError(ctypes.get_errno(), f"ptrace of {thread}")


def _stay(thread: int, until_s: float) -> None:
    """Hand over the signals that arrive meanwhile."""
    while time.monotonic() < until_s:
        stopped, status = os.waitpid(thread, os.WNOHANG | _WALL)
        if not stopped:
            time.sleep(_LOOK_S)
        elif not os.WIFSTOPPED(status):
            return
        else:
            event = status >> 16 == _STOP_EVENT
            _ptrace(_CONT, thread, 0 if event else os.WSTOPSIG(status))


def main(pid: int, seconds: float) -> None:
    begun_s = time.monotonic()
    _ptrace(_SEIZE, pid)
    _ptrace(_INTERRUPT, pid)
    os.waitpid(pid, _WALL)
    time.sleep(_STOPPED_S)
    _ptrace(_CONT, pid)
    _stay(pid, begun_s + seconds)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
