# SPDX-License-Identifier: Apache-2.0
"""Flows as the communication-pattern studies see them: who sends to whom, small, medium and large."""

import numpy as np
import pandas as pd

SIZE_CLASSES = ("small", "medium", "large")
SMALL_BYTES, LARGE_BYTES = 100_000, 10_000_000
"""Ours: a small flow carries less than 100 kB of payload in all, a large one at least 10 MB (the web-search
distribution's short and long flows)."""
_TUPLE = ["src", "dst", "src_port", "dst_port", "protocol"]


def size_class(payload_bytes: pd.Series) -> pd.Series:
    """small, medium or large for each flow's payload."""
    bins = [-np.inf, SMALL_BYTES, LARGE_BYTES, np.inf]
    return pd.cut(payload_bytes, bins, labels=list(SIZE_CLASSES), right=False).astype(str)


def once_per_flow(flows: pd.DataFrame) -> pd.DataFrame:
    """The rows of one observer per flow: the sender's own link where it was watched, else the receiver's.

    Takes rows with run, 5-tuple and direction; a flow between two watched hosts has been seen twice.
    """
    sent = flows["direction"] == "tx"
    key = pd.MultiIndex.from_frame(flows[["run", *_TUPLE]])
    return flows[sent | ~key.isin(key[sent])]


def host_names(flows: pd.DataFrame) -> dict[str, str]:
    """Address → name of the watched host that sends from it."""
    sent = flows[flows["direction"] == "tx"].drop_duplicates("src")
    return dict(zip(sent["src"], sent["host"], strict=True))


def who_sends_to_whom(flows: pd.DataFrame) -> pd.DataFrame:
    """Payload by run, job and pair: columns run, job, source, target, packets, wire_bytes, payload_bytes.

    Hosts by name where they are watched, else by address; each flow counts once, at its sender.
    """
    names = host_names(flows)
    once = once_per_flow(flows).assign(
        source=lambda rows: rows["src"].map(names).fillna(rows["src"]),
        target=lambda rows: rows["dst"].map(names).fillna(rows["dst"]),
    )
    sums = ["packets", "wire_bytes", "payload_bytes"]
    return once.groupby(["run", "job", "source", "target"], as_index=False)[sums].sum()


def ring_order(pairs: pd.DataFrame) -> list[str]:
    """Hosts of one job in the order in which the ring passes data on, from rows source, target, payload_bytes.

    Follows each host's largest receiver, from the first name on. Raises ValueError where that does not visit every
    host once and return: the pattern is no ring. Two hosts make a ring.
    """
    pairs = pairs[pairs["payload_bytes"] > 0]
    if pairs.empty:
        raise ValueError("no payload between hosts")
    largest = pairs.sort_values("payload_bytes").groupby("source")["target"].last()
    order = [min(largest.index)]
    while (following := largest.get(order[-1])) is not None and following not in order:
        order.append(following)
    hosts = {*pairs["source"], *pairs["target"]}
    if largest.get(order[-1]) != order[0] or set(order) != hosts:
        raise ValueError("following each host's largest receiver does not visit every host once: no ring")
    return order
