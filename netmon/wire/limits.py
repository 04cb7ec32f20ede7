# SPDX-License-Identifier: Apache-2.0
"""What a message from an agent may hold. Within these, sums fit an int64 and times are dates.

They are far from what an honest agent sends, and small enough for a collector that a thousand agents may try.
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
"""A number that nobody adds up: an iteration, a batch's number, parameters."""

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
