# SPDX-License-Identifier: Apache-2.0
"""What both ends of a channel rely on: what a message may hold, and when an end that is silent is gone.

Within the limits, sums fit an int64 and times are dates. They are far from what an honest agent sends, and small enough
for a collector that a thousand agents may try. A cut of the network is noticed in five seconds at most; then the next
attempt is never more than half a second away, and lasts one second.
"""

MAX_MONO_NS = 2**60 - 1
"""A host's monotonic time: 36 years of uptime."""

MAX_UTC_NS = 4_000_000_000_000_000_000 - 1
"""A time since the epoch: in 2096. With a monotonic time added to it, it is still an int64."""

MAX_SPAN_NS = 2**60 - 1
"""An error bound, or how long something takes."""

FURTHEST_NS = 10_000_000_000
"""Nothing in a batch lies so long after its horizon."""

MAX_WIDTH_NS = 1_000_000_000
"""The widest buckets."""

MAX_BYTES = 2**62 - 1
"""A counter of bytes: a year and a half at 800 Gbit/s. The sum of two is an int64."""

MAX_PACKETS = 2**54 - 1
"""A counter of packets or frames; times MAX_HEADER_BYTES it is at most MAX_BYTES."""

MAX_HEADER_BYTES = 2**8 - 1
"""What a NIC's counter leaves out of each frame."""

MAX_COUNT = 2**62 - 1
"""A number that nobody adds up: a batch's number, parameters."""

MAX_NUMBER = 2**63 - 1
"""The largest number that a message may carry: every number is an int64 in the dataset."""

MAX_ITERATION = 2**53 - 1
"""The number of an iteration, also one that was shifted to its job's: exact in a float64."""

MAX_NAME = 255
"""Characters of a name: of a process, a container, a job, an interface, a device, a counter."""

MAX_TEXT = 1024
"""Characters of a sentence."""

MAX_HOST = 253
"""Characters of a host's name as it stands in a directory's: percent-encoded."""

MAX_SESSION = 64
"""Characters of a session's name, which becomes part of file names."""

MAX_INTERFACES = 512
"""Of a host."""

MAX_ROWS = 1 << 18
"""Bucket rows of a batch; in memory each takes 64 bytes or more, on the wire it may be next to nothing."""

MAX_FLOWS, MAX_ITERATIONS, MAX_RANKS = 1 << 16, 1 << 15, 1 << 10
"""Of a batch, and of a hello. An agent describes a third as many flows one by one."""

MAX_LEDGER, MAX_EXCHANGES, MAX_NIC = 1 << 12, 1 << 12, 1 << 10
"""Of a batch."""

MAX_NIC_COUNTERS = 1 << 14
"""Of a batch, over all its devices."""

MAX_WORDS = 1 << 17
"""That the tables of a message name: each flow has a few of its own."""

MAX_EVIDENCE = 1 << 10
"""Rows of a batch in each table of netmon.evidence: connections that were looked at; the host and its ranks."""

# --- The channel itself.

MAX_MESSAGE_BYTES = 16 << 20
"""The most that a collector takes in one message; agents split what would be more into multiple batches."""

ALIVE_EVERY_S = 1.0
"""So often a collector says on a stream that it is alive, whether it has something to acknowledge or not."""

_MOST_AT_ONCE = 1 << 15  # calls that nobody has taken up yet: more than may be admitted of all kinds
_LOOKAHEAD_BYTES = 4 << 20  # of one stream: 80 MB/s over 50 ms

CONNECT_S = 1.0
"""How long one attempt of an agent may take."""

KEEPALIVE_S, KEEPALIVE_TIMEOUT_S = 20.0, 3.0
"""After so long without a word an agent asks whether the collector is there, and waits so long for the answer."""

FEW_THREADS = "-event_engine_listener,-event_engine_for_all_other_endpoints"
"""GRPC_EXPERIMENTS of a process with thousands of streams, read when gRPC is imported.

Who waits for messages reads them from the sockets, too, instead of four threads that wake it: about a quarter less for
each message. A gRPC that does not know these names passes over them.
"""

COLLECTOR_OPTIONS = (
    # Of more than a thousand that call at one moment, as after a restart, gRPC would refuse some by chance.
    ("grpc.server.max_pending_requests", _MOST_AT_ONCE),
    ("grpc.server.max_pending_requests_hard_limit", _MOST_AT_ONCE),
    ("grpc.so_reuseport", 0),  # a second collector on the port must fail, not take half of the agents
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),
    # To find out how much fits into the way, gRPC would answer every batch with a ping: it takes as much as is good.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", _LOOKAHEAD_BYTES),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),  # agents ping every two seconds
    # A collector that is late reads many of them at once, and must not cut off agents that pinged in time.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)
