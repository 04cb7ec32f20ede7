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
    EVENT = 3  # on one of several descriptors
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
    "io_bytes": "bytes that they read and wrote since then",
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
    "device": "the RDMA device",
    "queue": "number of the queue pair on its device",
    "remote": "address or GID of the other end, or its LID; empty where it is not known",
    "remote_queue": "number of the queue pair there; 0: not known",
    "verb": "`write`, `read`, `send`; or `other`: atomics, and what moves nothing",
    "bytes": "handed to the device's provider in that time; of a read, asked for",
    "requests": "work requests",
    "unread": "lists and requests that were longer than is read, or could not be read: more than `bytes` was posted",
    "whole": "everything that was ever posted on the queue pair has been counted",  # 1; else 0
}
MEANINGS = {"transport": _CONNECTION, "host": _HOST, "waits": _WAIT, "rdma": _POSTED}
"""Of the tables' columns, in their order: dtypes, messages and the dataset's schema follow."""

TRANSPORT = np.dtype([(name, "<i8") for name in _CONNECTION])
"""A connection between two looks at its socket (struct tcp_info), one row per connection; counters are differences."""

HOST_PART = np.dtype([(name, "<i8") for name in _HOST])
"""What held things up on a host in a time: its own row (job unknown), and one of each rank; differences of counters."""

WAIT = np.dtype([(name, "<i8") for name in _WAIT])
"""What a rank is in the midst of: a row for each collective and transfer that is not over, and for the last one of each
group. Of a rank that is quiet, now and then; once when it goes on; and once when it has called something in a group.
"""

POSTED = np.dtype([(name, "<i8") for name in _POSTED])
"""What a process has posted on a queue pair of an RDMA device by libibverbs, of one kind of request in a time."""

EVIDENCE = {"transport": TRANSPORT, "host": HOST_PART, "waits": WAIT, "rdma": POSTED}
"""By the names of the tables, in a batch and in the dataset."""
