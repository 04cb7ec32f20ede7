# SPDX-License-Identifier: Apache-2.0
"""A count that netmon.records declares is carried to the dataset by files that do not know its name."""

import subprocess
import sys

import pytest

CARRIED = """
import sys

import numpy as np

from netmon import records
from netmon import native

if sys.argv[1] == "numpy":
    native.compiled = None
elif not native.compiled:
    sys.exit(3)
records.COUNTS["marked"] = records.Count("packets that a switch marked", total=True, heading="marked")
records.BUCKET = np.dtype([*records.BUCKET.descr, ("marked", "<u8")])
records.COARSE = np.dtype([*records.COARSE.descr, ("marked", "<u8")])
records.COUNTED += ("marked",)

from collector.dataset.meanings import meaning
from collector.dataset.tables import SCHEMAS
from collector.host.flows import STATE, count_arrived
from collector.host.rows import arrived, merge
from netmon.dl.coarse import coarsen
from netmon.wire import netmon_pb2
from netmon.wire.batch_fields import join_buckets, split_buckets
from netmon.wire.buckets import decode_buckets, encode_buckets

rng = np.random.default_rng(1)
full = np.zeros(3000, records.BUCKET)
for name in full.dtype.names:
    full[name] = rng.integers(1, 1000, len(full))
coarse = coarsen(full, 10, 1000)
assert coarse["marked"].sum() == full["marked"].sum()
messages = [encode_buckets(table, 10, netmon_pb2.Buckets()) for table in (full, coarse)]
before = encode_buckets(coarse, 10, netmon_pb2.Buckets(), deflate=False)
before.columns, before.plain = before.columns[: -1 - 2 * len(coarse)], before.plain - 1  # of an agent before
columns, runs, refused = join_buckets([split_buckets(one) for one in (*messages, before)], [0, 1, 2], [2000] * 3)
assert not refused
rows = [columns[columns["batch"] == batch]["marked"] for batch in range(3)]
assert [int(one.sum()) for one in rows] == [full["marked"].sum(), full["marked"].sum(), 0]
for at, one in enumerate(messages):
    assert decode_buckets(one)["marked"].tolist() == rows[at].tolist()
assert not decode_buckets(before)["marked"].any()
merged = merge(arrived(full, full["flow_id"].astype(np.int64), 10), 10)
state = np.zeros(1000, STATE)
count_arrived(state, merged)
assert merged["marked"].sum() == state["marked"].sum() == full["marked"].sum()
assert SCHEMAS["buckets"].names.index("marked") == SCHEMAS["buckets"].names.index("busy_buckets") + 1
assert meaning("full", "marked") == "packets that a switch marked"
"""


@pytest.mark.parametrize("loops", ["compiled", "numpy"])
def test_a_new_count_reaches_the_dataset(loops: str) -> None:
    done = subprocess.run([sys.executable, "-c", CARRIED, loops], capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip("netmon/native is not built")
    assert done.returncode == 0, done.stderr
