# SPDX-License-Identifier: Apache-2.0
"""Real JAX, two processes on CPUs: each of its calls is told with its size, its group and its end; so are its steps."""

import numpy as np
import pandas as pd
import pytest
from loopback_ranks import run_ranks
from probed import Probed

from netmon.dl.operations import ENDS, GroupNames, Operation, byte_sizes
from netmon.lab.run import run
from netmon.lab.spec import RunSpec
from netmon.records import LIBRARY_XLA, STEP_BEGIN, STEP_GROUP, STEP_GROUP_NAME
from netmon.views import NETWORK

pytestmark = pytest.mark.kernel

RANKS, VALUES, STEPS = 2, 6_000, 40
MILLISECOND = 1_000_000

EVERY_CALL = """
import os, sys, jax, numpy as np
from functools import partial
from jax.sharding import Mesh, PartitionSpec as P
print("ready", flush=True)
input()
jax.distributed.initialize(num_processes=2, process_id=int(os.environ["RANK"]))
mesh, values, size = Mesh(np.array(jax.devices()), ("r",)), int(sys.argv[1]), jax.process_count()
on_all = partial(jax.shard_map, mesh=mesh, in_specs=P("r"), check_vma=False)
for call, out in (
    (lambda x: jax.lax.psum(x, "r"), P()),
    (lambda x: jax.lax.all_gather(x, "r", tiled=True), P()),
    (lambda x: jax.lax.psum_scatter(x, "r", tiled=True), P("r")),
    (lambda x: jax.lax.all_to_all(x, "r", 0, 0, tiled=True), P("r")),
    (lambda x: jax.lax.ppermute(x, "r", [(0, 1), (1, 0)]), P("r")),
):
    part = jax.make_array_from_process_local_data(jax.sharding.NamedSharding(mesh, P("r")), np.ones(values, np.float32))
    jax.block_until_ready(jax.jit(on_all(call, out_specs=out))(part))
"""


def test_every_call_is_told_as_it_is(probed: Probed) -> None:
    pids, _, told = run_ranks(probed, EVERY_CALL, RANKS, str(VALUES), framework="jax")
    groups = []
    for rank, pid in enumerate(pids):
        own = told[told["pid"] == pid]
        begun = own[own["kind"] == STEP_BEGIN]
        assert set(begun["library"].tolist()) == {LIBRARY_XLA}
        large = begun[byte_sizes(begun["size"]) >= VALUES]  # the rest: processes that find each other
        found = list(zip(large["tensors"].tolist(), byte_sizes(large["size"]).astype(int).tolist(), strict=True))
        whole = 4 * VALUES
        assert found == [
            (Operation.ALL_REDUCE, whole),
            (Operation.ALL_GATHER, whole),
            (Operation.REDUCE_SCATTER, whole),
            (Operation.ALL_TO_ALL, whole),
            (Operation.RECEIVE, whole),
        ]
        assert large["sequence"].tolist() == [0, 0, 0, 0, 1 - rank]
        assert set(large["group_rank"].tolist()) == {rank}
        assert set(large["group_size"].tolist()) == {RANKS}
        names = GroupNames()
        names.take(own[np.isin(own["kind"], (STEP_GROUP, STEP_GROUP_NAME))])
        groups.append({names.by_address[one].name for one in large["name_hash"].tolist()})
        over = own[ENDS[own["kind"]]]
        for call, later in zip(large, [*large["time_ns"][1:].tolist(), np.iinfo(np.int64).max], strict=True):
            ends = over["time_ns"][(over["work"] == call["work"]) & (over["time_ns"] > call["time_ns"])]
            assert call["time_ns"] < ends[0] < later
    assert groups[0] == groups[1]
    assert len(groups[0]) == 1


@pytest.mark.long
def test_all_steps_of_a_compiled_program_are_told_and_nobody_is_accused(tmp_path) -> None:
    quiet = {"hosts": RANKS, "ring": (0, 1), "cross": (), "cross_load": 0}
    run(RunSpec(tmp_path, "jax", **quiet, parameters=400_000, compute_ns=50 * MILLISECOND, iterations=STEPS))
    iterations = pd.read_parquet(tmp_path / "iterations")
    assert set(iterations["source"]) == {"uprobe"}
    for rank in range(RANKS):
        assert iterations[iterations["rank"] == rank]["iteration"].sort_values().tolist() == list(range(STEPS))
    verdicts = (
        pd.read_parquet(tmp_path / "verdicts") if (tmp_path / "verdicts").exists() else pd.DataFrame({"cause": []})
    )
    assert not {cause.name.lower() for cause in NETWORK} & set(verdicts["cause"])
