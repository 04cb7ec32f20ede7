# SPDX-License-Identifier: Apache-2.0
"""What tells why traffic was slow alongside its bytes: TCP's own view of connections, and the host's part. Plain types.

Tables as in netmon.records.
"""

from enum import IntEnum

import numpy as np

UNKNOWN = -1
"""In TRANSPORT and HOST_PART: the kernel does not report."""


class ProcessState(IntEnum):
    """Of a rank's process, by its first thread."""

    UNKNOWN = 0
    RUNS = 1
    SLEEPS = 2
    DISK = 3
    STOPPED = 4
    GONE = 5


class WaitsFor(IntEnum):
    """What a thread that sleeps waits for, by the kernel's function in which it does."""

    UNKNOWN = 0
    THREAD = 1  # another one of its process, or of one with which it shares memory
    TIME = 2
    EVENT = 3  # on one of a set of descriptors
    PIPE = 4
    CHILD = 5
    SOCKET = 6
    LOCK = 7
    STORAGE = 8


_CONNECTION = {
    "flow_id": "number of the flow in its session",  # that the host sends, if it is described; else that it receives
    "reverse_flow_id": "number of the flow in the other direction",
    "start_ns": "start",  # mono: of the look before, or of the connection's beginning
    "end_ns": "end",
    "sent_bytes": "payload that TCP handed down, retransmissions included",  # and what the own queue refused
    "retransmitted_bytes": "of that, payload sent again",
    "timeouts": "times that its timer ran out without an acknowledgement (from Linux 6.7)",
    "out_of_order_packets": "received out of order",
    "ecn_marked_packets": "sent packets that the receiver reports as marked; null if the ends do not speak ECN",
    "rtt_ns": "smoothed round-trip time, at the end",
    "rtt_min_ns": "the kernel's minimum of it, at the end",
    "busy_ns": "time with unacknowledged data",
    "receiver_limited_ns": "of that, limited by the receiver's window",
    "sender_limited_ns": "of that, limited by the send buffer",
    "application_limited": "at the last rate sample the application had no more to send",  # 1; else 0
    "congestion_window_bytes": "at the end",
    "delivery_bps": "last rate sample",
}
_HOST = {
    "start_ns": "start",  # mono
    "end_ns": "end",
    "job": "the job's identity, which its launcher gave to all ranks",  # its place among the batch's words
    "rank": "rank in the job",
    "pid": "process id on the host",
    "missed_packets": "packets that the NICs had no room for",
    "no_buffer_packets": "packets that the NICs' drivers had no buffer for",
    "limited_packets": "packets that the cloud delayed or dropped because of the host's limits",
    "pause_packets": "pause frames that the NICs have received",
    "congestion_packets": "congestion notices that RDMA ports have followed",
    "softnet_dropped": "packets dropped because the stack's backlog was full",
    "softnet_squeezed": "rounds of the stack that ended with packets left",
    "cpu_pressure_ns": "time in which some task waited for a CPU, of the host or of the rank's control group",
    "memory_pressure_ns": "the same for memory",
    "io_pressure_ns": "the same for storage",
    "throttled_ns": "time in which a CPU quota throttled the rank's control group, summed over CPUs",
    "run_delay_ns": "time for which the rank's thread that waited most waited for a CPU",
    "cpu_ns": "CPU time of all threads of the rank",
    "stopped_ns": "time for which the rank was stopped, by a signal or a debugger",
}
_WAIT = {
    "start_ns": "the rank has called its training library last",  # mono
    "end_ns": "when it was looked at, or called it again",
    "job": "the job's identity, which its launcher gave to all ranks",
    "rank": "rank in the job",
    "pid": "process id on the host",
    "size": "ranks in the job",
    "quiet": "1: it has called nothing since; 0: it goes on, or has called something in a new group",
    "state": "of the process: 1 runs, 2 sleeps, 3 waits for a disk, 4 stopped, 5 gone",
    "waits_for": "of its first thread: 1 another thread, 2 time, 3 events, 4 a pipe, 5 a child, 6 a socket, 7 a lock, "
    "8 storage",
    "cpu_ns": "CPU time of the process and its children since the row before",
    "io_bytes": "bytes that they read from storage and wrote there since then",
    "group": "of a collective or transfer: its group, by a hash of its name",
    "group_rank": "rank in the group",
    "group_size": "ranks in the group",
    "operation": "what it is, as PyTorch numbers operations",
    "sequence": "its number in the group on this rank",
    "position": "its number among the group's collectives",
    "peer": "of a transfer: the other rank of the group",
    "bytes": "of it",
    "age_ns": "for how long it had been begun at the end",
    "pending": "0: it is over; 1: it is not; 2: a thread waits for it",
}
_POSTED = {
    "start_ns": "what was posted until then is in earlier rows",  # mono
    "end_ns": "when it was read",
    "job": "the job's identity, which its launcher gave to all ranks",
    "rank": "rank in the job; −1: the process is none",
    "pid": "process id on the host",
    "process": "name of the process",
    "container": "container, systemd unit or Slurm job of the process",
    "user": "login name of the user whose process it is; the number where no name is known",
    "rdma_device": "the RDMA device",
    "queue": "number of the queue pair on its device",
    "remote": "address or GID of the other end, or its LID; empty where it is not known",
    "remote_queue": "number of the queue pair there; 0: not known",
    "verb": "`write`, `read`, `send`; or `other`: atomics, and what moves nothing",
    "bytes": "handed to the device's provider in that time; of a read, requested",
    "requests": "work requests",
    "unread": "lists and requests that were longer than is read, or could not be read, so that more than `bytes` was "
    "posted; and lists that were given up while they were built, so that less was",
    "whole": "everything that was ever posted on the queue pair has been counted",  # 1; else 0
}
_COLLECTIVE = {
    "start_ns": "the step before was over",  # mono; of the first one: it has begun
    "end_ns": "the step was over",
    "job": "the job's identity, which its launcher gave to all ranks",
    "rank": "rank in the job",
    "pid": "process id on the host",
    "size": "ranks in the job",
    "group": "the calls' group, by a hash of its name; null: not known",
    "group_rank": "rank in the group",
    "group_size": "ranks in the group",
    "operation": "what they are, as PyTorch numbers operations",
    "peer": "of transfers: the other rank of the group",
    "calls": "how many",
    "bytes": "of all: of a gather and an all-to-all what comes, of a sum what is summed",
    "forward_calls": "of the calls, those before the first backward pass; null: none was seen",
    "forward_bytes": "of the bytes, theirs",
    "open_ns": "time in which one of them was not over",
    "waited_ns": "of that, the time in which a thread of the rank waited for one",
    "first_at_ns": "the first was begun, after the start",
    "last_at_ns": "all were over, after the start",
    "longest_ns": "the longest wait for one of them",
    "longest_sequence": "the number of that one in its group on this rank, as PyTorch counts it",
    "longest_at_ns": "it was begun, after the start",
    "late_ns": "the longest time before one of them in which the rank neither called nor waited",
    "late_sequence": "the number of that one",
    "late_at_ns": "it was begun, after the start",
}
_TRANSFER = {
    "start_ns": "the first transfer was on its way or had come; if none was seen, as `queued_ns`",  # mono
    "end_ns": "the operation was over, or the transfer",
    "job": "the job's identity, which its launcher gave to all ranks",
    "rank": "rank in the job",
    "pid": "process id on the host",
    "communicator": "which one of the process: those that were split from one another are one",
    "group_rank": "rank that sends or receives, as the communicator numbers ranks",
    "peer": "the other rank, in the same way",
    "sends": "1: it sends; 0: it receives",
    "level": "0: a transfer; 1: an operation of NCCL's proxy, but for transfers that have rows; 2: a sum of operations",
    "collective": "1 broadcast, 2 reduce, 3 all-gather, 4 reduce-scatter, 5 all-reduce, 6 to 8 send and receive, 9 "
    "all-to-all, 10 scatter, 11 gather, 12 all-gather of unequal parts, 13 to 15 signals; 0: unknown",
    "algorithm": "1 ring, 2 tree, 3 CollNet, 4 NVLS, 5 PAT, 6 between two ranks; 0: unknown",
    "protocol": "0 LL, 1 LL128, 2 simple",
    "number": "of the operation in its communicator, as NCCL counts",
    "channel": "of NCCL's",
    "device": "network device, as NCCL numbers them",
    "queued_ns": "NCCL's proxy was given the operation",
    "bytes": "that it sent or received; null: not known",
    "transfers": "that these bytes are of",
    "missed": "transfers of which the size is not known, and not in `bytes`",
    "operations": "that the row stands for; of a transfer 0",
}
MEANINGS = {
    "transport": _CONNECTION,
    "host": _HOST,
    "waits": _WAIT,
    "collectives": _COLLECTIVE,
    "transfers": _TRANSFER,
    "rdma": _POSTED,
}
"""Of the tables' columns, in their order: dtypes, messages and the dataset's schema follow."""

TRANSPORT = np.dtype([(name, "<i8") for name in _CONNECTION])
"""A connection between two looks at its socket (struct tcp_info), one row per connection; counters are differences."""

HOST_PART = np.dtype([(name, "<i8") for name in _HOST])
"""What delayed a host in a time: its own row (job unknown), and one of each rank; differences of counters."""

WAIT = np.dtype([(name, "<i8") for name in _WAIT])
"""What a rank is in the midst of: a row for each collective and transfer that is not over, and for the last one of each
group. Of a rank that is quiet, now and then; once when it goes on; and once when it has called something in a group.
"""

POSTED = np.dtype([(name, "<i8") for name in _POSTED])
"""What a process has posted on a queue pair of an RDMA device by libibverbs, of one kind of request in a time."""

COLLECTIVE = np.dtype([(name, "<i8") for name in _COLLECTIVE])
"""What a rank has called in a step: a row for each group and operation, of transfers for each other rank, too."""

GROUP_COLUMNS = (
    *("rank", "size", "start_ns", "end_ns", "group", "group_rank", "group_size", "operation", "peer", "calls", "bytes"),
    *("forward_calls", "forward_bytes", "waited_ns"),
    *("longest_sequence", "longest_at_ns", "late_sequence", "late_at_ns"),
)
"""Columns of COLLECTIVE from which groups are inferred (netmon.dl.groups)."""

SAME_STEP_NS = 5_000_000
"""Between the ends of a step that two tables report, at most."""

TRANSFERS = np.dtype([(name, "<i8") for name in _TRANSFER])
"""What ranks send each other by NCCL, over whatever network: bytes of all rows of a rank add up."""

EVIDENCE = {
    "transport": TRANSPORT,
    "host": HOST_PART,
    "waits": WAIT,
    "collectives": COLLECTIVE,
    "transfers": TRANSFERS,
    "rdma": POSTED,
}
"""By the names of the tables, in a batch and in the dataset."""
