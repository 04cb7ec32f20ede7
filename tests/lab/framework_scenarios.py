# SPDX-License-Identifier: Apache-2.0
"""Trainings of optimizer_scenarios.py with sharded state, with Accelerate and with Lightning."""

import os

import torch
from small_training import adam, close, loss_of, network, scenario, train, weights
from torch.optim import lr_scheduler


@scenario
def sharded(watched):
    """ZeroRedundancyOptimizer and FSDP's parameters, on Gloo."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer

    own = not dist.is_initialized()
    if own:
        dist.init_process_group("gloo", init_method="env://" if int(os.environ["WORLD_SIZE"]) > 1 else None, **alone())
    model = network()
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    scheduler = None
    optimizer = watched(zero)
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    steps = train(model, optimizer, after=scheduler.step)
    optimizer.consolidate_state_dict()
    results = weights(model)
    close(optimizer)
    model = network()
    fully_shard(model)
    optimizer = watched(adam(model))
    steps += train(model, optimizer)
    results += [tensor.full_tensor() for tensor in weights(model)]
    close(optimizer)
    return steps, results


def alone():
    if int(os.environ["WORLD_SIZE"]) > 1:
        return {}
    return {"store": torch.distributed.HashStore(), "rank": 0, "world_size": 1}


@scenario
def accelerate(watched):
    """It steps on every second batch; watched by what goes in, and by what comes out."""
    from accelerate import Accelerator

    results, steps = [], 0
    for inside in (True, False):
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = network()
        optimizer = adam(model)
        model, optimizer = accelerator.prepare(model, watched(optimizer) if inside else optimizer)
        if not inside:
            optimizer = watched(optimizer)
        for _ in range(6):
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model))
                optimizer.step()
                optimizer.zero_grad()
        steps += 3
        results += weights(model)
        close(optimizer)
        close(optimizer.optimizer)
    return steps, results


@scenario
def lightning(watched):
    import lightning.pytorch as pl

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = network()

        def training_step(self, batch, _):
            return self.layers(batch[0]).pow(2).mean()

        def configure_optimizers(self):
            self.watched = watched(adam(self))
            return {"optimizer": self.watched, "lr_scheduler": lr_scheduler.StepLR(self.watched, 1)}

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(accelerator="cpu", devices=1, max_steps=3, enable_model_summary=False, **quiet)
    model = Model()
    data = torch.utils.data.TensorDataset(torch.randn(24, 6))
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=8))
    close(model.watched)
    return 3, weights(model)
