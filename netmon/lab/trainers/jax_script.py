# SPDX-License-Identifier: Apache-2.0
"""An ordinary data-parallel JAX script: each process has a part of the batch, and the compiler sums the gradients.

It writes down when its steps began and ended, and knows nothing of netmon. Computing is a wait, but for what the
compiled step does.
"""

import os
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from script import Hangs, IterationLog, Pauses, options, read_layers  # type: ignore[import-not-found]

_BATCH = 4  # of each process


def loss(model: list[jax.Array], batch: jax.Array) -> jax.Array:
    """batch: (values, 1). A chain of wide layers: all the gradients of a big model, little of its arithmetic."""
    for weights in model:
        batch = jnp.mean(batch @ weights, axis=1, keepdims=True) + batch
    return jnp.mean(jnp.square(batch))


@jax.jit  # type: ignore[untyped-decorator]
def train(model: list[jax.Array], batch: jax.Array) -> list[jax.Array]:
    """One step of gradient descent."""
    return [weights - 1e-6 * each for weights, each in zip(model, jax.grad(loss)(model, batch), strict=True)]


def main() -> None:
    args = options("one rank of a data-parallel JAX job").parse_args()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    jax.distributed.initialize(num_processes=size, process_id=rank)  # the coordinator is in the environment
    mesh = Mesh(np.array(jax.devices()), ("batch",))
    split, everywhere = NamedSharding(mesh, PartitionSpec("batch")), NamedSharding(mesh, PartitionSpec())
    sizes = read_layers(args.layers, args.params)
    model = [jax.device_put(np.full((1, values), 1e-3, np.float32), everywhere) for values in sizes]
    batch = jax.make_array_from_process_local_data(split, np.ones((_BATCH, 1), np.float32))
    metric = jax.jit(jnp.sum)
    pauses, hangs = Pauses(args.pauses, rank), Hangs(args.hangs, rank, {}, int)
    with IterationLog(args.log, rank) as log:
        for iteration in range(args.iterations):
            start = time.monotonic_ns()
            pauses.be_late(iteration)
            time.sleep(args.compute)
            handed_over = time.monotonic_ns()
            model = jax.block_until_ready(train(model, batch))
            end = time.monotonic_ns()
            log.add(iteration, start, handed_over, end, end)
            pauses.keep(iteration + 1, lambda: jax.block_until_ready(metric(batch)))
            hangs.keep(iteration + 1)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
