# SPDX-License-Identifier: Apache-2.0
"""How the two ends of the channel notice that the network between them is gone, and find each other again.

A cut is noticed in five seconds at most; then the next attempt is never more than half a second away, and lasts one
second.
"""

MAX_MESSAGE_BYTES = 16 << 20
"""The most that a collector takes in one message; agents make several batches of what would be more."""

ALIVE_EVERY_S = 1.0
"""So often a collector says on a stream that it is alive, whether it has something to acknowledge or not."""

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
    ("grpc.so_reuseport", 0),  # a second collector on the port must fail, not take half of the agents
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),
    # To find out how much fits into the way, gRPC would answer every batch with a ping: it takes as much as is good.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", _LOOKAHEAD_BYTES),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),  # agents ask every two seconds
    # A collector that is late reads several of them at once, and must not cut off who asked in due time.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)
