# SPDX-License-Identifier: Apache-2.0
"""What a local user without privilege may do to an agent; a program of its own, for any Python, without our packages.

`python3 attacks.py NAME SOCKET FOLDER`: the folder holds a library that was built for it, and may be written to.
Prints "ready" when it is under way, and goes on until it is killed.
"""

import ctypes
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

HEAD, MARK = struct.Struct("<4sIiiQ"), struct.Struct("<qqq")
JOIN, STEP_START = 1, 2
SOCKET, FOLDER = sys.argv[2], Path(sys.argv[3])
LIBRARY = FOLDER / "mpi_lib_v2.so"


def ready():
    print("ready", flush=True)


def wait():
    ready()
    time.sleep(600)


def begin_anew(action, **environment):
    """A process whose environment is another one from its start."""
    if os.environ.get("ATTACK") != action:
        variables = {**os.environ, "ATTACK": action, **environment}
        os.execve(sys.executable, [sys.executable, *sys.argv], variables)


def connect():
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    connection.connect(SOCKET)
    return connection


def packet(rank, *marks, job=b"attack", size=1 << 20):
    return HEAD.pack(b"NMK2", len(job), rank, size, 0) + job + b"".join(MARK.pack(*mark) for mark in marks)


def send(connection, what):
    """Whether it was taken; tries again where the agent has cut us off."""
    try:
        connection.send(what)
    except BlockingIOError:
        time.sleep(0.0005)
        return connection
    except OSError:
        connection.close()
        try:
            return connect()
        except OSError:
            time.sleep(0.001)
    return connection


def nothing():
    wait()


def rank_beyond_32_bits():
    begin_anew("rank", RANK="3000000000", WORLD_SIZE="4000000000")
    connection = connect()
    connection.send(packet(2**31 - 1, (JOIN, 0, time.monotonic_ns()), size=2**31 - 1))
    wait()


def rendezvous():
    begin_anew("rendezvous", RANK="0", WORLD_SIZE="2", NETMON_JOB="attack")
    library = ctypes.CDLL(str(LIBRARY))
    ready()
    while True:
        library.set_up(ctypes.c_uint32(2**32 - 1), ctypes.c_uint32(2**32 - 1))
        time.sleep(0.01)


def large_environment():
    names = {f"FILLING_{number}": 100_000 * "x" for number in range(8)}
    begin_anew("environment", RANK="0", WORLD_SIZE="2", NETMON_JOB=120_000 * "j", **names)
    wait()


def many_ranks():
    begin_anew("ranks", RANK="0", WORLD_SIZE="2", NETMON_JOB=2_000 * "é")
    attacker = os.getpid()
    for _ in range(1500):
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(1, 9)  # it dies with the attacker
            while os.getppid() == attacker:
                time.sleep(600)
            os._exit(0)
    wait()


def hostile_names():
    begin_anew("names", RANK="0", WORLD_SIZE="2", NETMON_JOB="\x1b[2J\u202etxt.exe\n\u2028")
    Path("/proc/self/comm").write_bytes("\x1b[31m\u202eroot\n".encode())
    ctypes.CDLL(str(LIBRARY))
    wait()


def marks():
    connection, number = connect(), 0
    send(connection, packet(0, (JOIN, 0, time.monotonic_ns())))
    ready()
    while True:
        now = time.monotonic_ns()
        many = [(STEP_START + (number + i) % 4, (number + i) // 4, now + i) for i in range(64)]
        number += 64
        connection = send(connection, packet(0, *many))


def joins():
    connection, number = connect(), 0
    ready()
    while True:
        number += 1
        connection = send(connection, packet(number % 1000, (JOIN, 0, time.monotonic_ns())))


def connections():
    held = []
    ready()
    while True:
        try:
            held.append(connect())
        except OSError:
            time.sleep(0.001)


def calls():
    begin_anew("calls", RANK="0", WORLD_SIZE="2", NETMON_JOB="attack")
    library = ctypes.CDLL(str(LIBRARY))
    attacker = os.getpid()
    for _ in range(3):
        if os.getpid() == attacker and os.fork() == 0:
            ctypes.CDLL(None).prctl(1, 9)  # it dies with the attacker
    ready()
    library.call(ctypes.c_long(10**12))


def call_as_many_ranks(action, name):
    """Ranks of one job, each in a process of its own, that call as fast as they can."""
    begin_anew(action, RANK="0", WORLD_SIZE="4", NETMON_JOB="attack")
    children = [
        subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "RANK": str(rank)})
        for rank in range(1, 4)
        if os.environ["RANK"] == "0"
    ]
    ctypes.CDLL(None).prctl(1, 9 if os.environ["RANK"] != "0" else 0)  # they die with the first
    library = ctypes.CDLL(str(LIBRARY))
    if children:
        ready()
    getattr(library, name)(ctypes.c_long(10**12))


def calls_of_ranks():
    call_as_many_ranks("calls_of_ranks", "call")


def steps():
    call_as_many_ranks("steps", "step")


def many_libraries():
    begin_anew("libraries", RANK="0", WORLD_SIZE="2", NETMON_JOB="attack")
    for number in range(700):
        folder = FOLDER / f"copy{number}"
        folder.mkdir()
        ctypes.CDLL(str(shutil.copy(LIBRARY, folder)))
    wait()


def map_file(path):
    """Maps a file as code, which need not be a library."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    with open(path, "rb") as file:
        assert libc.mmap(None, ctypes.c_size_t(4096), 5, 2, file.fileno(), ctypes.c_long(0)) not in (None, 2**64 - 1)


def broken_libraries():
    begin_anew("broken", RANK="0", WORLD_SIZE="2", NETMON_JOB="attack")
    whole = LIBRARY.read_bytes()
    names = whole.index(b"_ZN7horovod")
    contents = {
        "text": b"not a library" * 400,
        "torn": whole[: len(whole) // 2],
        "names": whole[:names] + 200 * b"\xff" + whole[names + 200 :],
        "zeros": whole[:64] + bytes(len(whole) - 64),
    }
    for name, content in contents.items():
        (FOLDER / name).mkdir()
        path = FOLDER / name / LIBRARY.name
        path.write_bytes(content)
        map_file(path)
    (FOLDER / "sparse").mkdir()
    sparse = FOLDER / "sparse" / LIBRARY.name
    with sparse.open("wb") as file:
        file.write(whole)
        # The first section's table of strings, said to be as long as the file is.
        sections = struct.unpack_from("<Q", whole, 40)[0]
        for number in range(struct.unpack_from("<H", whole, 60)[0]):
            file.seek(sections + 64 * number + 32)
            file.write(struct.pack("<Q", 4 << 30))
        file.truncate(16 << 30)
    map_file(sparse)
    ready()
    while True:  # what is refused changes, and is looked at again
        os.utime(sparse)
        time.sleep(0.05)


def fifo():
    begin_anew("fifo", RANK="0", WORLD_SIZE="2", NETMON_JOB="attack")
    folder = FOLDER / "fifo"
    folder.mkdir()
    path = shutil.copy(LIBRARY, folder)
    os.mkfifo(folder / "pipe")
    script = (
        "import ctypes, sys, subprocess, time\n"
        "file, libc = open(sys.argv[1], 'rb'), ctypes.CDLL(None)\n"
        "subprocess.run(['mount', '--bind', sys.argv[2], sys.argv[1]], check=True)\n"
        "libc.mmap(None, ctypes.c_size_t(4096), 5, 2, file.fileno(), ctypes.c_long(0))\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", script, path, folder / "pipe"]
    os.execvp(command[0], list(map(str, command)))


def timelines():
    begin_anew("timelines", RANK="0", WORLD_SIZE="2", NETMON_JOB="attack", HOROVOD_TIMELINE=str(FOLDER / "timeline"))
    ctypes.CDLL(str(LIBRARY))
    start = '{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros":%d}},\n'
    event = '{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": %d, "pid": %d},\n'
    ready()
    while True:
        for begin, pid in ((17, 10**40), (10**30, 1), (10**15, 10**18)):
            new = FOLDER / "new"
            new.write_text("[\n" + start % begin + 5000 * (event % (10**14, pid)) + event % (10**30, pid))
            new.rename(FOLDER / "timeline")
            time.sleep(0.5)


globals()[sys.argv[1]]()
