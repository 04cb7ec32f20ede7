# SPDX-License-Identifier: Apache-2.0
"""What the buckets of a batch carry, per link: what the ledger has to count should they be given up."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from netmon.records import Flow, Table

COUNTS = ("packets", "wire_bytes", "payload_bytes")
LINK_TOTALS = np.dtype([("interface", "<u4"), ("direction", "<u4"), *((name, "<u8") for name in COUNTS)])
"""One row per link. It travels through the spool as bytes."""

NOTHING = np.zeros(0, LINK_TOTALS)


def link_totals(buckets: Table, flows: Mapping[int, Flow]) -> Table:
    """buckets: dtype BUCKET; flows: at least those of the buckets → dtype LINK_TOTALS."""
    if not len(buckets):
        return NOTHING
    ids, indices = np.unique(buckets["flow_id"], return_inverse=True)
    links = np.array([flows[flow_id].interface << 1 | flows[flow_id].direction for flow_id in ids.tolist()], np.int64)
    found, index_of = np.unique(links, return_inverse=True)
    table = np.zeros(len(found), LINK_TOTALS)
    table["interface"], table["direction"] = found >> 1, found & 1
    rows = index_of[indices]
    for name in COUNTS:
        table[name] = np.bincount(rows, weights=buckets[name], minlength=len(found))  # exact below 2**53
    return table


def summed(tables: list[bytes]) -> Table:
    """Several of them as bytes → one, dtype LINK_TOTALS."""
    rows = np.frombuffer(b"".join(tables), LINK_TOTALS)
    keys, indices = np.unique(rows["interface"].astype(np.int64) << 1 | rows["direction"], return_inverse=True)
    table = np.zeros(len(keys), LINK_TOTALS)
    table["interface"], table["direction"] = keys >> 1, keys & 1
    for name in COUNTS:
        np.add.at(table[name], indices, rows[name])
    return table


def described(table: npt.NDArray[np.void]) -> str:
    """For a line of the log."""
    packets, wire = int(table["packets"].sum()), int(table["wire_bytes"].sum())
    return f"{packets:,} packets, {wire:,} B"
