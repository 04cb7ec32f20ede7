# SPDX-License-Identifier: Apache-2.0
"""The plain types that every room shares: numpy dtypes for tables, frozen dataclasses for single things.

Times are integers in nanoseconds. `mono` is the kernel's CLOCK_MONOTONIC of one host, `utc` the UTC epoch.
Byte counts say which bytes they are: wire (frames as sent on the link, a header per segment) or payload
(transport payload only).
"""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
import numpy.typing as npt

SCHEMA_VERSION = 1

_Number = TypeVar("_Number", bound=np.generic)

Table = npt.NDArray[np.void]
"""A numpy structured array; its dtype is named where it is used."""

# --- what the kernel hands over (mirrors bpf/netmon.h, compared with it at load) --------------------------------

FLOW_KEY = np.dtype(
    [("src", "V16"), ("dst", "V16"), ("src_port", ">u2"), ("dst_port", ">u2"), ("link_protocol", "<u4")]
)
SLOT = np.dtype(
    [
        ("key", FLOW_KEY),
        ("bucket_start_ns", "<u8"),
        ("wire_bytes", "<u4"),
        ("payload_bytes", "<u4"),
        ("packets", "<u2"),
        ("generation", "<u2"),
        ("losses", "<u4"),
    ]
)
KERNEL_FLOW = np.dtype([("key", FLOW_KEY), ("slot", "<u4"), ("generation", "<u2"), ("pad", "<u2")])
KERNEL_BUCKET = np.dtype(
    [
        ("bucket_start_ns", "<u8"),
        ("wire_bytes", "<u4"),
        ("payload_bytes", "<u4"),
        ("slot", "<u4"),
        ("generation", "<u2"),
        ("packets", "<u2"),
    ]
)
KERNEL_INTERFACE = np.dtype([("index", "<u4"), ("number", "<u4")])
KERNEL_LEDGER = np.dtype(
    [
        (name, "<u8")
        for name in (
            "frames",
            "packets",
            "frame_bytes",
            "wire_bytes",
            "overflow_packets",
            "overflow_wire_bytes",
            "overflow_payload_bytes",
            "lost_packets",
            "lost_wire_bytes",
            "lost_payload_bytes",
        )
    ]
    + [("pad", "V48")]
)
KERNEL_PRODUCER = np.dtype(
    [(name, "<u8") for name in ("buckets", "flows", "buckets_limit", "flows_limit", "losses", "fences", "woken")]
    + [("pad", "<u8")]
)
KERNEL_CONSUMER = np.dtype(
    [(name, "<u8") for name in ("buckets", "flows", "wake_buckets", "wake_flows", "sleep")] + [("pad", "V24")]
)
STEP = np.dtype(
    [
        ("time_ns", "<u8"),
        ("name_hash", "<u8"),
        ("pid", "<u4"),
        ("kind", "u1"),
        ("library", "u1"),
        ("tensors", "<u2"),
        ("size", "<u8"),  # values << 4 | bytes of each; 0: unknown
        ("work", "<u8"),
        ("sequence", "<u4"),
        ("group_rank", "<u2"),
        ("group_size", "<u2"),
    ]
)


def calls_of(rows: Sequence[tuple[int, ...]]) -> Table:
    """Rows of STEP by its columns up to `size`; the others are 0."""
    table = np.zeros(len(rows), STEP)
    names = list(STEP.names or ())[:7]
    table[names] = np.array(rows, STEP[names])
    return table


STEP_ENQUEUE, STEP_WAIT_BEGIN, STEP_WAIT_END, STEP_DONE, STEP_OTHER, STEP_RANK, STEP_CALL, STEP_DROPPED = range(1, 9)
STEP_SIZE, STEP_TRANSFER = 9, 10
STEP_BEGIN, STEP_OVER, STEP_WORK_WAIT, STEP_BACKWARD, STEP_GROUP, STEP_GROUP_NAME = range(11, 17)
OF_ALL, OF_ONE, OF_EACH = range(3)  # of a transfer, in place of its name: as bpf/netmon.h has them
(
    LIBRARY_HOROVOD,
    LIBRARY_REDUCER,
    LIBRARY_NCCL,
    LIBRARY_GLOO,
    LIBRARY_XLA,
    LIBRARY_CUDA,
) = range(1, 7)

SOCKET_EVENT = np.dtype(
    [
        ("local", "V16"),
        ("remote", "V16"),
        ("local_port", ">u2"),
        ("remote_port", ">u2"),
        ("pid", "<u4"),
        ("kind", "<u4"),
        ("uid", "<u4"),
        ("cgroup", "<u8"),
        ("process", "S16"),
    ]
)
SOCKET_CONNECT, SOCKET_CLOSE = 1, 2

TRANSFER_LAYOUT = np.dtype(
    [
        (name, "<u4")
        for name in (
            *("sub_bytes", "subs", "connection", "channel", "steps", "size"),
            *("operation", "slice_steps", "collective", "pattern", "protocol", "send", "resources"),
            *("send_rank", "send_peer", "send_device", "receive_rank", "receive_peer", "receive_device"),
            *("sent", "awaited", "received", "total"),
        )
    ]
    + [("collectives", "V32"), ("algorithms", "V32")]
)
TRANSFER = np.dtype(
    [(name, "<u8") for name in ("queued_ns", "start_ns", "end_ns", "bytes", "number")]
    + [(name, "<u4") for name in ("pid", "thread", "transfers", "missed", "operations")]
    + [(name, "<i4") for name in ("rank", "peer", "device")]
    + [("channel", "<u2")]
    + [(name, "u1") for name in ("level", "receives", "collective", "algorithm", "protocol", "pad")]
)
"""What a rank of NCCL's has sent or received, as bpf/collectives.c tells it."""
TRANSFER_ONE, TRANSFER_OPERATION, TRANSFER_OPERATIONS = range(3)
"""Its level."""
TRANSFER_TRAPS, TRANSFER_UNREPORTED, TRANSFER_UNREPORTED_BYTES, TRANSFER_IMPLAUSIBLE, TRANSFER_EACH = range(5)
"""Further counters, and whether transfers are reported one by one."""

STOP = np.dtype([("begin_ns", "<u8"), ("end_ns", "<u8"), ("total_ns", "<u8"), ("pid", "<u4"), ("pad", "<u4")])

QUEUE_KEY = np.dtype([("context", "<u8"), ("pid", "<u4"), ("number", "<u4")])
QUEUE = np.dtype(
    [
        ("bytes", "<u8", 4),
        ("requests", "<u8", 4),
        ("unread", "<u8"),
        ("begun_ns", "<u8"),
        ("gid", "V16"),
        ("remote", "<u4"),
        ("lid", "<u4"),
        ("uid", "<u4"),
        ("building", "<u4"),
        ("process", "S16"),
        ("device", "S32"),
    ]
)
PROVIDER = np.dtype([("address", "<u8"), ("pid", "<u4"), ("way", "<u4")])

PROTOCOL_NON_IP = 255
"""The protocol of a flow that is not IP; its dst_port is the EtherType."""

# --- what flows from agent to collector -------------------------------------------------------------------------


class Count(NamedTuple):
    """What is counted of a flow in a bucket; rows of different buckets add up, but for the peak."""

    meaning: str  # of the dataset's column
    total: bool = False  # is added up for each flow, too, while it is alive
    heading: str = ""  # of the page's table of a host's largest flows, which shows it


COUNTS = {
    "packets": Count("frames as sent on the link: segments of super-packets count one by one"),
    "wire_bytes": Count("bytes of the Ethernet frames as sent on the link, without preamble and FCS", True, "bytes"),
    "payload_bytes": Count("bytes of transport payload", True),
    "peak_bytes": Count("wire bytes of the largest full-resolution bucket within the row"),
    "busy_buckets": Count("number of full-resolution buckets within the row that are not empty"),
}
"""By their names, from the kernel to the dataset, in its order. Of what is appended an agent of before tells 0."""

BUCKET = np.dtype(
    [
        ("bucket_start_ns", "<u8"),  # mono
        ("wire_bytes", "<u4"),
        ("payload_bytes", "<u4"),
        ("flow_id", "<u4"),
        ("packets", "<u4"),
    ]
)
"""(flow, bucket) → counts. Multiple rows may name the same flow and bucket (one per CPU); they add up.

Laid out as KERNEL_BUCKET is, so that one becomes the other in place.
"""

COUNTED = tuple(name for name in COUNTS if name in (BUCKET.names or ()))
"""What the kernel counts."""

COARSE = np.dtype(
    [*((name, BUCKET[name].str) for name in BUCKET.names or ()), ("peak_bytes", "<u4"), ("busy_buckets", "<u4")]
)
"""Rows wider than the agent's buckets: wire bytes of the largest of those in them, and how many are not empty."""


class Direction(IntEnum):
    """Which way a link carries its frames, as the host sees it."""

    RX = 0
    TX = 1


class Moment(IntEnum):
    """What a mark's time stands for. An iteration's boundary always names its moment."""

    JOIN = 1  # a rank made itself known; no boundary; iteration: an Understanding, of its calls
    STEP_START = 2  # before the forward pass
    FIRST_ENQUEUE = 3  # the first gradient of the step is handed to the library
    LAST_WAIT = 4  # the wait for the last reduced gradient of the step is over
    STEP_END = 5  # after the optimizer's step
    LEAVE = 6  # the rank is gone
    FIRST_WAIT = 7  # the training thread has nothing left but to wait: communication from here on is exposed


class Source(IntEnum):
    """The source of an iteration, best first."""

    HOOK = 1
    UPROBE = 2
    TIMELINE = 3
    INFERRED = 4


class Class(IntEnum):
    """What a row's bytes are to the training jobs of its host."""

    UNCLASSIFIED = 0
    DL_ONLY = 1
    DL_SHARED = 2
    CROSS = 3


CLASS_NAMES = ("unclassified", "DL-only", "DL-shared", "cross")
"""Names of Class, in its order, as shown and as stored."""

CLASS_LETTERS = ("?", "dl", "sh", "x")
"""What stands for each Class where there is no room for its name."""

CLASS_COLOURS = ("#999999", "#0072B2", "#E69F00", "#CC79A7")
"""One colour per Class everywhere (Okabe and Ito's colour-blind-safe palette)."""

CLASS_PATTERNS = "░█▓▒"
"""One character per Class where there are no colours."""

STACK = (Class.DL_ONLY, Class.DL_SHARED, Class.CROSS, Class.UNCLASSIFIED)
"""The classes in the order in which bars and columns show them."""


@dataclass(frozen=True)
class Interface:
    """One watched interface of a host. It makes two links, rx and tx."""

    index: int  # the agent's own number of it, which stays when the interface is removed and made again
    name: str
    capacity_bps: int  # 0: unknown
    hook_rx: str  # "tcx", "clsact", "xdp", "xdpgeneric"
    hook_tx: str
    driver: str = ""
    mtu: int = 0
    super_packet_bytes: int = 0  # the most that the hook can see as one packet with one time; 0: unknown
    byte_basis: str = "frames as sent on the link, without preamble and FCS; one header per segment"


@dataclass(frozen=True)
class ClockSample:
    """One reading of both clocks: utc = mono + (utc_ns - mono_ns), right to error_ns."""

    mono_ns: int
    utc_ns: int
    error_ns: int
    utc_error_ns: int = 0  # how far the host's UTC may be off, as its kernel says; 0: nobody keeps it
    discipline: str = ""  # who keeps it: "ptp", "ntp"; empty: nobody

    @property
    def offset_ns(self) -> int:
        """What to add to a mono time of this host to get UTC."""
        return self.utc_ns - self.mono_ns


@dataclass(frozen=True)
class ClockExchange:
    """One question to the collector's clock and its answer (RFC 5905's four timestamps).

    The agent's times are its mono, the collector's its UTC: an exchange is still true when the collector has moved.
    """

    agent_sent_ns: int
    collector_received_ns: int
    collector_sent_ns: int
    agent_received_ns: int


@dataclass(frozen=True)
class NicSample:
    """Cumulative counters of one device, read together."""

    device: str  # an interface's name, or "mlx5_0/1": an RDMA device and its port
    source: str  # "ethtool", "sysfs" or "rdma"
    time_ns: int  # mono
    names: tuple[str, ...]  # as the driver calls them; those in bytes have it in the name
    values: tuple[int, ...]


@dataclass(frozen=True)
class Owner:
    """Whose local socket a flow belongs to. pid 0: nobody's (see source).

    How it is known, best first:
    "socket": the process holds the very socket, or the one that is bound to the port (UDP);
    "connect": the kernel reported which process connected it;
    "close": the kernel reported which process closed it, of a connection that was accepted and short;
    "listener": the process listens on the local port, as long as nothing better is known of the connection;
    "service": nothing was found, but everybody known here who talks to that remote port is this process;
    "protocol": ARP, ICMP and others without ports, the kernel's own;
    "traffic": the collector's inference from the traffic;
    "aggregate": the flow stands for more than one, and all that is known of their local port is this process;
    "peer": the process is no rank, but the other end belongs to one, and its job has ranks on this host, too: the
    launcher with its rendezvous, say. The flow is the job's (rank −1), as it is at its other end; pid and process say
    whose socket it is. A server on a host without ranks of the job keeps its flows, whoever asks it;
    empty: not known.
    """

    pid: int = 0
    process: str = ""
    container: str = ""  # 12 digits of a container's id, or the name of a systemd unit, LXC container or Slurm job
    job: str = ""  # empty: not a rank of a training job
    rank: int = -1
    source: str = ""  # how it is known: see above
    user: str = ""  # login name, or the number where none is known


@dataclass(frozen=True)
class Flow:
    """One unidirectional 5-tuple on one link of one host. flow_id is unique in the agent's session.

    Or, with members, an aggregate of flows that were not described one by one: of one link and protocol, with either
    one prefix of the remote address (ports 0, the local address 0.0.0.0 or ::) or one local port that one process
    serves (both addresses 0.0.0.0 or ::). Its bytes are exact.
    """

    flow_id: int
    interface: int  # Interface.index
    direction: Direction
    src: str
    dst: str
    src_port: int
    dst_port: int
    protocol: int
    first_ns: int  # mono
    owner: Owner = field(default_factory=Owner)
    members: int = 0  # 0: a flow; else an aggregate, in which a flow appeared so often
    prefix_bits: int = 0  # of an aggregate's remote address; 0: any


@dataclass(frozen=True)
class Mark:
    """One moment of one rank's iteration, in the host's mono clock."""

    job: str
    rank: int
    size: int  # ranks in the job; 0: unknown
    pid: int
    iteration: int
    moment: Moment
    time_ns: int
    source: Source
    error_ns: int
    parameters: int = 0  # model size in float32 parameters; 0: unknown
    relative: bool = False  # the iteration number counts from when the agent began to look
    gradient_bytes: int = 0  # of all gradients of a step; 0: not known, so 4 for each parameter
    job_name: str = ""  # what people call the job, of a mark that it joined; empty: the same


@dataclass(frozen=True)
class RankState:
    """A process as one rank of a job, as its host knows it by now. Times are mono."""

    rank_id: int  # of its session: no other process, and not this one as another rank, gets it
    job: str  # as the process calls it
    rank: int
    size: int  # ranks in the job; 0: unknown
    pid: int
    joined_ns: int
    left_ns: int = 0  # 0: it is there
    trust: int = 2  # netmon.dl.numbering.Trust: where the zero of its numbers comes from
    hooked: bool = False  # its training script tells its steps itself
    understanding: int = 0  # netmon.dl.understanding.Understanding, of its library's calls
    set_ups: int = 0  # how often it was set up anew as the same rank
    parameters: int = 0  # model size in float32 parameters; 0: unknown
    gradient_bytes: int = 0  # of all gradients of a step; 0: not known, so 4 for each parameter
    parameters_source: int = 0  # the Source of the two; 0: none
    job_name: str = ""  # what people call the job; empty: the same


ITERATION = np.dtype(
    [
        (name, "<i8")
        for name in (
            *("rank_id", "number", "source", "start_moment", "end_moment", "start_ns", "end_ns", "error_ns"),
            *("comm_start_ns", "wait_start_ns", "comm_end_ns"),
        )
    ]
)
"""An iteration of a rank, as its host knows it by now: again when more is known of it. Times are mono.

A rank's iterations ascend in number and time. end_ns 0: it is under way; end_ns as start_ns: it never was. The last
three: 0 where they are not known. number −1: no iteration of the rank's, but between these times another one of its
sources has seen one, and may turn out to be right.
"""

SCORE = np.dtype(
    [(name, "<i8") for name in ("rank_id", "source", "reference", "iterations", "found", "matched", "error_ns")]
)
"""A views.SourceScore of a rank."""


@dataclass(frozen=True, eq=False)
class Training:
    """What a host knows of its ranks."""

    ranks: Sequence[RankState] = ()  # those with iterations, and those of which something has changed
    iterations: Table = field(default_factory=lambda: np.empty(0, ITERATION))
    scores: Table = field(default_factory=lambda: np.empty(0, SCORE))

    def __bool__(self) -> bool:
        return bool(self.ranks)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Training):
            return NotImplemented
        tables = (self.iterations, other.iterations), (self.scores, other.scores)
        return tuple(self.ranks) == tuple(other.ranks) and all(np.array_equal(*pair) for pair in tables)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Hello:
    """How an agent introduces itself. A session is one run of an agent; its sequence numbers start at 1."""

    host: str
    session: str
    bucket_ns: int
    clock: ClockSample
    interfaces: tuple[Interface, ...]
    agent_version: str
    schema_version: int = SCHEMA_VERSION
    flows: Sequence[Flow] = ()  # that are alive, for a collector which has just started
    training: Training = field(default_factory=Training)  # who is there, and the iterations under way
    acknowledged: int = 0  # the last batch of which the agent knows that it is stored
    stream_ns: int = 0  # width of the buckets that it streams unless it is under pressure; 0: bucket_ns
    oldest_reader: int = 0  # a collector of this schema version understands what follows; 0: schema_version

    @property
    def streamed_ns(self) -> int:
        """Width of the rows that its batches carry unless they say else."""
        return self.stream_ns or self.bucket_ns


@dataclass(frozen=True)
class LedgerSample:
    """Cumulative counters of one link, all read at time_ns (mono). nic_bytes is in nic_basis."""

    interface: int  # Interface.index
    direction: Direction
    time_ns: int
    nic_bytes: int
    nic_packets: int
    nic_header_bytes: int  # what the NIC's counter leaves out of each frame (14: no Ethernet header)
    frames: int
    packets: int  # segments of those frames
    frame_bytes: int
    wire_bytes: int
    overflow_packets: int
    overflow_wire_bytes: int
    overflow_payload_bytes: int
    lost_kernel_packets: int
    lost_kernel_wire_bytes: int
    lost_kernel_payload_bytes: int
    lost_agent_packets: int
    lost_agent_wire_bytes: int
    lost_agent_payload_bytes: int
    uncounted: int = 0  # 1: no agent has counted since the sample before


@dataclass(frozen=True)
class AgentCost:
    """What the agent itself used since its last batch."""

    cpu_fraction: float = 0.0  # of one core, all its processes
    rss_bytes: int = 0
    spool_bytes: int = 0
    warnings: int = 0  # marks and messages that could not be used, since the start


@dataclass(frozen=True)
class Batch:
    """What an agent sends once a second, and more often while somebody waits for it.

    Every bucket that ended before horizon_ns has been sent.
    """

    sequence: int
    clock: ClockSample
    horizon_ns: int  # mono
    buckets: Table  # dtype BUCKET, or COARSE where they are wider than the agent's buckets
    flows: Sequence[Flow] = ()  # new, or with a new owner
    training: Training = field(default_factory=Training)
    ledger: Sequence[LedgerSample] = ()
    cost: AgentCost = AgentCost()
    exchanges: Sequence[ClockExchange] = ()
    nic: Sequence[NicSample] = ()
    bucket_ns: int = 0  # width of the rows; 0: the hello's bucket_ns
    evidence: Mapping[str, Table] = field(default_factory=dict)  # of netmon.evidence.EVIDENCE, by their names
    words: Sequence[str] = ()  # that these refer to by index


def address(packed: bytes) -> str:
    """16 packed bytes → text; IPv4-mapped addresses as IPv4."""
    ip = ipaddress.IPv6Address(packed)
    return str(ip.ipv4_mapped or ip)


def empty(dtype: np.dtype[Any]) -> Table:
    """A table without rows."""
    return np.empty(0, dtype)


def distinct(values: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    """(n,) → each of them once, ascending. Like numpy.unique, which loads 2 MB of numpy.ma where it is called so."""
    ordered = np.sort(values)
    is_first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]


# --- A table as separate columns: whoever works on one of them does not pay for the others, as in a structured array.

_Column = npt.NDArray[Any]


class Columns:
    """Arrays of one length, by name. A part of it shares memory with it; what is taken by an index is a copy."""

    __slots__ = ("_begin", "_columns", "_end")

    def __init__(self, columns: Mapping[str, _Column], begin: int = 0, end: int = -1) -> None:
        """Take over the arrays, at least one; begin, end: of the rows that count, −1: to the last one."""
        self._columns, self._begin = columns, begin
        self._end = end if end >= 0 else len(next(iter(columns.values())))

    @classmethod
    def zeros(cls, rows: int, dtype: "np.dtype[np.void]") -> "Columns":
        """As np.zeros of a structured dtype."""
        return cls({name: np.zeros(rows, dtype[name]) for name in dtype.names or ()})

    @property
    def names(self) -> list[str]:
        """Of the columns, in their order."""
        return list(self._columns)

    @property
    def nbytes(self) -> int:
        return len(self) * sum(column.itemsize for column in self._columns.values())

    def __len__(self) -> int:
        return self._end - self._begin

    @overload
    def __getitem__(self, what: str) -> _Column: ...
    @overload
    def __getitem__(self, what: "slice | npt.NDArray[np.bool_]") -> "Columns": ...
    def __getitem__(self, what: "str | slice | npt.NDArray[np.bool_]") -> "_Column | Columns":
        """A column; or rows: a slice without steps shares memory, those where a mask is true are copied."""
        if isinstance(what, str):
            return self._columns[what][self._begin : self._end]
        if isinstance(what, slice):
            begin, end, _ = what.indices(len(self))
            return Columns(self._columns, self._begin + begin, self._begin + max(begin, end))
        return self.take(np.flatnonzero(what))

    def __setitem__(self, name: str, values: npt.ArrayLike) -> None:
        """Write into a column that is there."""
        self._columns[name][self._begin : self._end] = values

    def take(self, indices: npt.NDArray[np.integer]) -> "Columns":
        """Rows by their indices."""
        return Columns({name: self[name].take(indices) for name in self._columns})

    def replaced(self, **columns: _Column) -> "Columns":
        return Columns({name: self[name] for name in self._columns} | columns)


def joined(tables: Iterable[Columns]) -> Columns:
    """Tables with the same columns, at least one, one after the other; a single one is not copied."""
    tables = list(tables)
    if len(tables) == 1:
        return tables[0]
    return Columns({name: np.concatenate([table[name] for table in tables]) for name in tables[0].names})
