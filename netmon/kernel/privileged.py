# SPDX-License-Identifier: Apache-2.0
"""The part of the agent that keeps capabilities. It never touches the network.

It loads and attaches the programs, looks sockets and processes up, and probes training libraries; it answers
requests on one socket from the part that talks to the collector, and ends when that socket closes, or is killed when
the other part is: then the links and probes it holds vanish. netmon.kernel.requests has all that it can be made to do.
Replies are JSON, one per packet; the first one carries the maps' descriptors. A packet has a size that the kernel takes
whatever processes say of themselves: what does not go into one comes with the next.
"""

import base64
import contextlib
import gc
import json
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from netmon.errors import KernelError, NetmonError
from netmon.kernel import bpf_calls, loader, privilege, processes, stops, verbs
from netmon.kernel.meter.memory import choose_geometry
from netmon.kernel.owners.namespaces import Namespaces, TcpElsewhere
from netmon.kernel.owners.owner_search import Answer, OwnerSearch
from netmon.kernel.owners.socket_events import EVENT_MAP, MAP, PROGRAM, SocketEvents
from netmon.kernel.processes import Process, ProcessTable, in_turn
from netmon.kernel.requests import (
    MOST_BYTES,
    TRANSFERS,
    FindOwners,
    Look,
    LookClosely,
    LookElsewhere,
    ReadPosted,
    RefusedError,
    Request,
    Start,
    decode,
    encode,
)
from netmon.kernel.sock_diag import Endpoint
from netmon.kernel.training.nccl import HANDED_OVER, NcclTransfers
from netmon.kernel.training.timelines import MOST_AT_ONCE, Opened, Timelines
from netmon.kernel.training.uprobes import Uprobes
from netmon.kernel.watching import WatchedInterface
from netmon.marks import printable
from netmon.own_module import allow_descriptors
from netmon.service import service_user, trim_heap

MOST_OF_USER, MOST_OF_ALL = 128, 1024
_GENERATIONS = 8


def choose_candidates(ranks: Sequence[Process], training: Collection[int]) -> list[Process]:
    """ranks: oldest first; training: who maps a training library → those to be reported, oldest first.

    Who trains comes before who does not, and then the older one.
    """
    known = {process.pid: process for process in ranks}
    own = [process for process in ranks if not _is_child_of_trainer(process, known, training)]
    trainers = [process.pid for process in own if process.pid in training]
    others = [process.pid for process in own if process.pid not in training]
    of_user: dict[int, int] = {}
    chosen: set[int] = set()
    for pids in (trainers, others):
        for pid in in_turn(pids, lambda pid: known[pid].uid):
            uid = known[pid].uid
            of_user[uid] = of_user.get(uid, 0) + 1
            if of_user[uid] <= MOST_OF_USER and len(chosen) < MOST_OF_ALL:
                chosen.add(pid)
    return [process for process in own if process.pid in chosen]


def _is_child_of_trainer(process: Process, known: dict[int, Process], training: Collection[int]) -> bool:
    ancestor = known.get(process.parent)
    for _ in range(_GENERATIONS):
        if ancestor is None or ancestor.rank != process.rank:
            return False
        if ancestor.pid in training:
            return True
        ancestor = known.get(ancestor.parent)
    return False


MORE_MAPS = (EVENT_MAP, stops.MAP)
"""In addition to loader.MAPS, where the kernel reports them."""

log = logging.getLogger(__name__)

_MESSAGE_BYTES = 1 << 20
_PAGE_BYTES = 64 << 10  # of what is said of processes in one message
_MOST_WARNINGS, _MOST_WARNING = 32, 400  # of one message, and characters of each
_END_LIMIT_S = 10
_START_LIMIT_S = 120
_SOCKET_EVENTS_EVERY_S = 0.01  # a storm of connections is looked at in bundles


class _Server:
    """The privileged process."""

    def __init__(self, parent: socket.socket) -> None:
        self._parent = parent
        self._processes = ProcessTable()
        self._socket_events: SocketEvents | None = None
        self._owners: OwnerSearch | None = None
        self._elsewhere: TcpElsewhere | None = None
        self._interfaces: list[WatchedInterface] = []
        self._programs: dict[str, int] = {}
        self._uprobes: Uprobes | None = None
        self._verbs: verbs.Verbs | None = None
        self._nccl: NcclTransfers | None = None
        self._timelines = Timelines()
        self._ranks: list[int] = []  # pids of the last look's
        self._left: list[dict[str, Any]] = []  # ranks that are still to be sent
        self._started = False
        self.refused = 0
        """Packets that made us do nothing."""

    def serve(self) -> None:
        """Answers until the other end is gone, then detaches."""
        try:
            while packet := self._next_request():
                self._answer(packet)
        except ConnectionResetError:  # it went without having read our last answer
            return
        finally:
            for interface in self._interfaces:
                interface.detach()
            for probes in (self._uprobes, self._nccl, self._verbs):
                if probes:
                    probes.close()
            if self._socket_events:
                self._socket_events.close()

    def _next_request(self) -> bytes:
        """Blocks until there is one, or the other end is gone; looks at who makes connections meanwhile."""
        parent = self._parent.fileno()
        while True:
            news = [source.descriptor for source in (self._socket_events, self._verbs) if source]
            readable = select.select([parent, *news], [], [])[0]
            if parent in readable:
                break
            if self._verbs and self._verbs.descriptor in readable:
                self._verbs.take()
            if self._owners:
                self._owners.take_socket_events()
            if select.select([parent], [], [], _SOCKET_EVENTS_EVERY_S)[0]:
                break
        return self._parent.recv(MOST_BYTES + 1)

    def _answer(self, packet: bytes) -> None:
        descriptors: list[int] = []
        try:
            reply = self._do(decode(packet), descriptors)
        except RefusedError as error:
            reply = {"error": self._refuse(error)}
        except (NetmonError, OSError) as error:
            reply = {"error": str(error)}
        with contextlib.suppress(BrokenPipeError):  # the other end has gone meanwhile: serve ends next
            socket.send_fds(self._parent, [json.dumps(reply).encode()], descriptors)
        if "timelines" in reply:  # only those of a start stay ours
            for descriptor in descriptors:
                os.close(descriptor)

    def _do(self, request: Request, descriptors: list[int]) -> dict[str, Any]:
        """descriptors: to be filled with those that go with the reply. Raises RefusedError where it is not its turn."""
        if isinstance(request, Start) == self._started:
            raise RefusedError("a start comes once, and before all else")
        self._started = True
        if isinstance(request, Start):
            return self._start(request, descriptors)
        if isinstance(request, FindOwners):
            return self._find_owners(request.endpoints)
        if isinstance(request, LookElsewhere):
            return self._look_elsewhere(request.endpoints)
        if isinstance(request, ReadPosted):
            return self._read_posted()
        if isinstance(request, LookClosely):
            return {"looks": _page([(pid, *processes.look(pid)) for pid in self._ranks])}
        return self._look_around(descriptors) if isinstance(request, Look) else self._send_more()

    def _refuse(self, error: RefusedError) -> str:
        self.refused += 1
        text = f"a request to the privileged part was refused: {error}"
        if self.refused & self.refused - 1 == 0:  # the first, second, fourth and so on
            log.warning("%s (%d so far)", text, self.refused)
        return text

    def _start(self, request: Start, descriptors: list[int]) -> dict[str, Any]:
        geometry = choose_geometry(request.bucket_ns, len(request.interfaces), request.flows)
        self._programs = loader.load(geometry, () if request.hook == "xdp" else loader.XDP_PROGRAMS)
        if loader.STEP_PROGRAMS[0] in self._programs:
            self._uprobes = Uprobes(self._programs)
            if wanted := TRANSFERS.index(request.transfers):
                self._nccl = NcclTransfers(lambda: loader.load_collectives(geometry), wanted)
        for number, (name, index) in enumerate(request.interfaces, 1):
            interface = WatchedInterface(number, name, request.hook, index)
            interface.attach(self._programs)
            self._interfaces.append(interface)
        self._watch_sockets()
        self._watch_stops()
        if verbs.PROGRAMS[0] in self._programs:
            self._verbs = verbs.Verbs(self._programs, self._processes)
        maps = [name for name in (*loader.MAPS, *MORE_MAPS) if name in self._programs]
        descriptors.extend(self._programs[name] for name in maps)
        gc.collect()
        gc.freeze()
        trim_heap()
        return {"hooks": [interface.hooks for interface in self._interfaces], "maps": maps, "verbs": bool(self._verbs)}

    def _watch_sockets(self) -> None:
        with contextlib.suppress(KeyError, OSError):  # the kernel does not report them: sockets are looked up only
            self._socket_events = SocketEvents(self._programs[PROGRAM], self._programs[MAP])
        self._owners = OwnerSearch(self._processes, self._socket_events)

    def _watch_stops(self) -> None:
        """For as long as this process lives."""
        if stops.PROGRAM not in self._programs:
            return  # the loader has said why
        try:
            bpf_calls.raw_tracepoint_open(self._programs[stops.PROGRAM], stops.TRACEPOINT)
        except OSError as error:
            log.warning("cannot watch for stops of ranks: %s", error.strerror)
            del self._programs[stops.MAP]

    def _find_owners(self, endpoints: Sequence[Endpoint]) -> dict[str, Any]:
        answers = self._owners.find(endpoints) if self._owners else []
        found: list[dict[str, Any] | None] = [_owner(answer) for answer in answers]
        sent = len(_page(found))
        return {"owners": [*found[:sent], *(None for _ in found[sent:])]}  # the rest is requested again

    def _look_elsewhere(self, endpoints: Sequence[Endpoint]) -> dict[str, Any]:
        """What TCP says of connections of other network namespaces."""
        if self._elsewhere is None:
            self._elsewhere = TcpElsewhere(Namespaces())
        found = self._elsewhere.query(endpoints)
        return {"able": self._elsewhere.able, "rows": base64.b64encode(found.tobytes()).decode()}

    def _look_around(self, descriptors: list[int]) -> dict[str, Any]:
        self._processes.scan(time.monotonic_ns())
        warnings: list[str] = []
        for interface in self._interfaces:
            with _named("cannot follow an interface", warnings):
                interface.follow(self._programs)
        ranks = choose_candidates(self._processes.ranks(), self._training)
        self._ranks = [process.pid for process in ranks]
        probed: list[str] = []
        timelines: list[Opened] = []
        if self._uprobes:
            with _named("cannot look at training libraries", warnings):
                probed = self._uprobes.follow(process.pid for process in ranks)
            warnings += self._uprobes.warnings()
            with _named("cannot look at what NCCL sends", warnings):
                probed += self._look_at_nccl(self._uprobes, warnings)
        if self._verbs:
            with _named("cannot look at libraries of RDMA", warnings):
                probed += self._verbs.follow(process.pid for process in ranks)
            warnings += self._verbs.warnings()
        with _named("cannot look at timelines", warnings):
            timelines = self._timelines.follow(ranks, self._uprobes.trainers if self._uprobes else {})
        descriptors.extend(opened.descriptor for opened in timelines)
        handed_over = self._nccl.hand_over() if self._nccl else []
        descriptors.extend(handed_over)
        watched = self._uprobes.probed if self._uprobes else set()
        self._left = [self._rank(process) | {"probed": process.pid in watched} for process in ranks]
        return {
            "timelines": [(opened.pid, opened.uid, opened.whole) for opened in timelines],
            "interfaces": [[interface.index, interface.name] for interface in self._interfaces],
            "transfers": bool(handed_over),
            "probed": [printable(path) for path in probed],
            "warnings": [printable(warning, _MOST_WARNING) for warning in warnings[:_MOST_WARNINGS]],
            **self._send_more(),
        }

    def _read_posted(self) -> dict[str, Any]:
        if self._verbs is None:
            return {"posted": [], "owners": {}, "more": False}
        rows, owners, more = self._verbs.read()
        return {"posted": rows, "owners": {pid: _described(own) for pid, own in owners.items() if own}, "more": more}

    def _look_at_nccl(self, uprobes: Uprobes, warnings: list[str]) -> list[str]:
        """What has been probed; warnings: to be filled."""
        for library in uprobes.take_nccl():
            if self._nccl:
                self._nccl.take(library)
            else:
                os.close(library.descriptor)
        if not self._nccl:
            return []
        added = self._nccl.follow(uprobes.files, uprobes.spend)
        warnings += self._nccl.warnings()
        return [f"{path} for what it sends" for path in added]

    def _send_more(self) -> dict[str, Any]:
        """A page of the ranks of the last look."""
        page = _page(self._left)
        self._left = self._left[len(page) :]
        return {"ranks": page, "more": bool(self._left)}

    @property
    def _training(self) -> set[int]:
        return self._uprobes.training if self._uprobes else set()

    def _rank(self, process: Process) -> dict[str, Any]:
        late = self._uprobes.late if self._uprobes else set()
        known = {"uid": process.uid, "trains": process.pid in self._training, "late": process.pid in late}
        return {**_described(process), **known, "job_name": process.job_name}


@contextlib.contextmanager
def _named(attempt: str, warnings: list[str]) -> Iterator[None]:
    """Whatever strangers may have prepared for us there: it is named, and everything else goes on."""
    try:
        yield
    except (NetmonError, OSError) as failure:
        warnings.append(str(failure))
    except Exception as failure:
        warnings.append(f"{attempt}: {type(failure).__name__}: {failure}")


def _page(things: Sequence[Any]) -> list[Any]:
    room, page = _PAGE_BYTES, []
    for thing in things:
        room -= len(json.dumps(thing)) + 2
        if room < 0:
            break
        page.append(thing)
    return page


def _owner(answer: Answer | None) -> dict[str, Any] | None:
    return {**_described(answer.process), "source": answer.source} if answer else None


def _described(process: Process) -> dict[str, Any]:
    rank = process.rank._asdict() if process.rank else {"job": "", "rank": -1, "size": 0}
    names = {"process": printable(process.name), "container": printable(process.container)}
    return {"pid": process.pid, "uid": process.uid, **names, **rank}


@dataclass(frozen=True)
class Started:
    """What a started privileged part hands over. hooks: per interface, rx then tx. verbs: whether posts are counted.

    descriptors: of loader.MAPS, and of MORE_MAPS where the kernel reports them.
    """

    descriptors: dict[str, int]
    hooks: tuple[tuple[str, str], ...]
    verbs: bool = False


class Privileged:
    """The other end: used by the unprivileged part. One request at a time is under way."""

    def __init__(self) -> None:
        """Starts the process. Its capabilities are those of the caller now, who must have no other thread yet.

        It is a copy of this one, so that both share what was imported until now: 8 MB.
        """
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gc.collect()
        gc.freeze()  # looking all of it over would copy it
        with theirs:
            pid = _fork(theirs)
        self.pid = pid
        """Of the privileged process."""
        self._ended = os.pidfd_open(self.pid)
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self.busy = False

    @property
    def descriptor(self) -> int:
        """Readable when a reply has come, or the process has ended."""
        return self._socket.fileno()

    def start(self, request: Start) -> Started:
        """Loads and attaches; blocks until everything is attached. Raises KernelError."""
        self.request(request)
        self._socket.settimeout(_START_LIMIT_S)
        try:
            message, descriptors, *_ = socket.recv_fds(self._socket, _MESSAGE_BYTES, len(loader.MAPS) + len(MORE_MAPS))
        except TimeoutError:
            names = ", ".join(name for name, _ in request.interfaces)
            raise KernelError(
                f"cannot attach to {names}: the programs are not compiled and loaded after {_START_LIMIT_S} s; this "
                "host has no CPU time to spare: start the agent again"
            ) from None
        reply = self._decoded(message)
        self._socket.setblocking(False)
        pairs = tuple((rx, tx) for rx, tx in reply["hooks"])
        return Started(dict(zip(reply["maps"], descriptors, strict=True)), pairs, reply["verbs"])

    def request(self, request: Request) -> None:
        """Sends a request, whose reply `poll` will return. Not while busy."""
        self._socket.send(encode(request))
        self.busy = True

    @property
    def answered(self) -> bool:
        """Whether `poll` would return a reply, or raise."""
        return bool(self._readable.poll(0))

    def poll(self) -> dict[str, Any] | None:
        """The reply to the request under way, or None while there is none. Raises KernelError when it is gone.

        Its `timelines` are of type Opened; they, and the `transfers` (HANDED_OVER, or none), have descriptors that are
        the caller's to close.
        """
        try:
            most = MOST_AT_ONCE + len(HANDED_OVER)
            message, descriptors, *_ = socket.recv_fds(self._socket, _MESSAGE_BYTES, most)
        except BlockingIOError:
            return None
        reply = self._decoded(message)
        if reply.get("transfers"):
            descriptors, handed_over = descriptors[: -len(HANDED_OVER)], descriptors[-len(HANDED_OVER) :]
        reply["transfers"] = dict(zip(HANDED_OVER, handed_over, strict=True)) if reply.get("transfers") else {}
        timelines = zip(reply.get("timelines", ()), descriptors, strict=True)
        reply["timelines"] = [Opened(pid, uid, whole, descriptor) for (pid, uid, whole), descriptor in timelines]
        return reply

    def _decoded(self, message: bytes) -> dict[str, Any]:
        if not message:
            raise KernelError("the privileged part of the agent has ended: nothing is watched any more")
        self.busy = False
        reply: dict[str, Any] = json.loads(message)
        if "error" in reply:
            raise KernelError(reply["error"])
        return reply

    def close(self) -> None:
        """Ends it, and with it everything that is attached; waits until it is so."""
        self._socket.close()
        over = select.poll()
        over.register(self._ended, select.POLLIN)
        if not over.poll(_END_LIMIT_S * 1000):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._ended)


def _fork(theirs: socket.socket) -> int:
    """The pid of the privileged process, which does not return from here."""
    parent = os.getpid()
    if pid := os.fork():
        return pid
    status = 1
    try:
        os.dup2(theirs.fileno(), 0)
        status = main(parent)
    except BaseException:
        log.exception("the privileged part of the agent has failed")
    finally:
        os._exit(status)


def main(parent: int) -> int:
    """The privileged process: serves the socket on standard input. parent: pid."""
    logging.basicConfig(level=logging.WARNING, format="netmon: %(message)s", stream=sys.stderr, force=True)
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # the other part's, its end of the socket above all
        if descriptor > 2:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    os.chdir("/")
    privilege.become_service(service_user())
    privilege.die_with_parent(parent)
    allow_descriptors()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGTERM):  # the other part decides when we end
        signal.signal(number, signal.SIG_IGN)
    _Server(socket.socket(fileno=0)).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
