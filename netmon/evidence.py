# SPDX-License-Identifier: Apache-2.0
"""What tells why traffic was slow alongside its bytes: TCP's own view of connections, and the host's part. Plain types.

Tables as in netmon.records.
"""

import numpy as np

UNKNOWN = -1
"""In TRANSPORT and HOST_PART: the kernel does not report."""

TRANSPORT = np.dtype(
    [
        (name, "<i8")
        for name in (
            "flow_id",  # of the flow that the host sends, if it is described; else of the one that it receives
            "reverse_flow_id",  # of the other one
            "start_ns",  # mono: of the look before, or of the connection's beginning
            "end_ns",
            "sent_bytes",  # payload that TCP handed down, what it sent again and what the own queue refused included
            "retransmitted_bytes",
            "out_of_order_packets",  # that came in
            "ecn_marked_packets",  # sent, of which the receiver says so; unknown where the ends do not speak ECN
            "rtt_ns",  # smoothed, at the end
            "rtt_min_ns",  # the kernel's minimum, at the end
            "busy_ns",  # while there was something unacknowledged
            "receiver_limited_ns",  # of that: by the receiver's window
            "sender_limited_ns",  # of that: by the send buffer
            "application_limited",  # 1: at the last rate sample the application had no more to send
            "congestion_window_bytes",  # at the end
            "delivery_bps",  # the last rate sample
        )
    ]
)
"""A connection between two looks at its socket (struct tcp_info), one row per connection; counters are differences."""

HOST_PART = np.dtype(
    [
        (name, "<i8")
        for name in (
            "start_ns",  # mono
            "end_ns",
            "job",  # its place among the batch's words; unknown in the host's own row
            "rank",
            "pid",
            "missed_packets",  # that the NICs had no room for
            "no_buffer_packets",  # that the NICs' drivers had no buffer for
            "softnet_dropped",  # packets: the stack's backlog was full
            "softnet_squeezed",  # rounds of the stack that ended with packets left
            "cpu_pressure_ns",  # while some task waited for it: of the host, or of the rank's control group
            "memory_pressure_ns",
            "io_pressure_ns",
            "throttled_ns",  # of the rank's control groups by their CPU quota, summed over CPUs
            "run_delay_ns",  # while the rank's thread that waited most for a CPU did
            "cpu_ns",  # of all threads of the rank
            "stopped_ns",  # while the rank was stopped, by a signal or a debugger
        )
    ]
)
"""What held things up on a host in a time: rows of the host, and of each rank; differences of counters."""

EVIDENCE = {"transport": TRANSPORT, "host": HOST_PART}
"""By the names of the tables, in a batch and in the dataset."""
