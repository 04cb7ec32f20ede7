# SPDX-License-Identifier: Apache-2.0
"""What the trainings of optimizer_scenarios.py are made of."""

import os

import torch

SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def network():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def horovod(model, **options):
    import horovod.torch as hvd

    hvd.init()
    os.environ["HOROVOD_ELASTIC"] = "1"  # even of one rank, gradients are then handed over
    return hvd.DistributedOptimizer(sgd(model), named_parameters=model.named_parameters(), **options)


def loss_of(model):
    return model(torch.randn(8, 6)).pow(2).mean()


def train(model, optimizer, steps=3, after=lambda: None):
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        after()
    return steps


def weights(*models):
    return [tensor.detach().clone() for model in models for tensor in model.state_dict().values()]


def close(optimizer):
    steps = getattr(optimizer, "netmon", None)
    if steps is not None:
        steps.close()
