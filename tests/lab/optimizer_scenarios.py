# SPDX-License-Identifier: Apache-2.0
"""Trainings that are run twice, with netmon's watch and without; in Horovod's environment, not netmon's.

Each prints a line: its name, the steps that its optimizer made, and whether both gave the same numbers to the last bit.
"""

import copy
import io
import json
import pickle
import sys
import traceback
import warnings
from itertools import product

import framework_scenarios  # noqa: F401  (its scenarios)
import torch
from small_training import SCENARIOS, adam, close, horovod, loss_of, network, scenario, sgd, train, weights
from torch.optim import lr_scheduler

from netmon.horovod import watch

ARGUMENTS = {
    "LambdaLR": {"lr_lambda": lambda epoch: 0.9**epoch},
    "MultiplicativeLR": {"lr_lambda": lambda epoch: 0.9},
    "StepLR": {"step_size": 1},
    "MultiStepLR": {"milestones": [1, 2]},
    "ExponentialLR": {"gamma": 0.9},
    "CosineAnnealingLR": {"T_max": 3},
    "CyclicLR": {"base_lr": 0.01, "max_lr": 0.1},
    "CosineAnnealingWarmRestarts": {"T_0": 2},
    "OneCycleLR": {"max_lr": 0.1, "total_steps": 5},
    "PolynomialLR": {},
    "ConstantLR": {},
    "LinearLR": {},
    "ReduceLROnPlateau": {},
}


def scheduler_of(name, optimizer):
    if name == "ChainedScheduler":
        return lr_scheduler.ChainedScheduler([scheduler_of(one, optimizer) for one in ("LinearLR", "ExponentialLR")])
    if name == "SequentialLR":
        both = [scheduler_of(one, optimizer) for one in ("LinearLR", "ExponentialLR")]
        return lr_scheduler.SequentialLR(optimizer, both, milestones=[1])
    return getattr(lr_scheduler, name)(optimizer, **ARGUMENTS[name])


@scenario
def schedulers(watched):
    """All of them, on PyTorch's optimizer and on Horovod's, made before watch and after it."""
    every = {name for name in lr_scheduler.__all__ if name not in ("LRScheduler",)}
    assert every - {"LRScheduler", "SWALR"} == set(ARGUMENTS) | {"ChainedScheduler", "SequentialLR"}, every
    results, steps = [], 0
    for name, make, before in product(sorted(every - {"SWALR"}), (sgd, horovod), (True, False)):
        model = network()
        optimizer = make(model)
        if before:
            scheduler = scheduler_of(name, optimizer)
            optimizer = watched(optimizer)
        else:
            optimizer = watched(optimizer)
            scheduler = scheduler_of(name, optimizer)
        plateau = name == "ReduceLROnPlateau"
        steps += train(model, optimizer, after=lambda s=scheduler, p=plateau: s.step(1.0) if p else s.step())
        results += weights(model)
        results += [torch.tensor(group["lr"]) for group in optimizer.param_groups]
        close(optimizer)
    return steps, results


@scenario
def optimizers(watched):
    """Each of PyTorch's own that takes dense gradients."""
    results, steps = [], 0
    for name in sorted(torch.optim.__all__):
        kind = getattr(torch.optim, name)
        if not isinstance(kind, type) or name in ("Optimizer", "SparseAdam", "LBFGS"):
            continue
        model = network()
        kept = [p for p in model.parameters() if p.ndim == 2] if name == "Muon" else model.parameters()
        optimizer = watched(kind(kept, lr=0.01))
        steps += train(model, optimizer)
        results += weights(model)
        close(optimizer)
    return steps, results


@scenario
def closures(watched):
    """LBFGS calls the script back many times in a step."""
    model = network()
    optimizer = watched(torch.optim.LBFGS(model.parameters(), max_iter=4))
    data = torch.randn(8, 6)

    def closure():
        optimizer.zero_grad()
        loss = model(data).pow(2).mean()
        loss.backward()
        return loss

    losses = [optimizer.step(closure).detach() for _ in range(3)]
    close(optimizer)
    return 3, [*weights(model), *losses]


@scenario
def grad_scaler(watched):
    """It leaves a step out where a gradient is not finite."""
    model = network()
    optimizer = watched(sgd(model))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for number in range(4):
        optimizer.zero_grad()
        loss = loss_of(model) * (float("inf") if number == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    close(optimizer)
    return 3, [*weights(model), torch.tensor(scaler.get_scale())]


@scenario
def averaged(watched):
    model = network()
    optimizer = watched(sgd(model))
    average = torch.optim.swa_utils.AveragedModel(model)
    scheduler = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05)

    def after():
        average.update_parameters(model)
        scheduler.step()

    steps = train(model, optimizer, after=after)
    close(optimizer)
    return steps, weights(model, average)


class Whole(torch.optim.SGD):
    """Copied and pickled with all that it has."""

    def __getstate__(self):
        return self.__dict__.copy()


@scenario
def copies(watched):
    """A copy steps like its original, and is nobody's rank."""
    results, steps = [], 0
    for make in (sgd, adam, horovod, lambda model: Whole(model.parameters(), lr=0.05)):
        model = network()
        optimizer = watched(make(model))
        steps += train(model, optimizer)
        other_model, other = copy.deepcopy((model, optimizer)) if make is not horovod else (model, optimizer)
        if make is not horovod:
            train(other_model, other)
            third_model, third = pickle.loads(pickle.dumps((model, optimizer)))
            train(third_model, third)
            results += weights(third_model)
        saved = io.BytesIO()
        torch.save(optimizer.state_dict(), saved)
        saved.seek(0)
        optimizer.load_state_dict(torch.load(saved))
        steps += train(model, optimizer)
        results += weights(model, other_model)
        close(optimizer)
    return steps, results


@scenario
def groups(watched):
    model, more = network(), torch.nn.Linear(6, 6)
    optimizer = watched(sgd(model))
    steps = train(model, optimizer)
    optimizer.add_param_group({"params": more.parameters()})
    whole = torch.nn.Sequential(more, model)
    steps += train(whole, optimizer)
    close(optimizer)
    return steps, weights(whole)


@scenario
def horovods(watched):
    """Gradients accumulated, grouped, and reduced before the step."""
    results, steps = [], 0
    for options in ({"backward_passes_per_step": 2}, {"num_groups": 2}, {}):
        model = network()
        optimizer = watched(horovod(model, **options))
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(options.get("backward_passes_per_step", 1)):
                loss_of(model).backward()
            if options:
                optimizer.step()
            else:
                optimizer.synchronize()
                with optimizer.skip_synchronize():
                    optimizer.step()
            steps += 1
        results += weights(model)
        close(optimizer)
    return steps, results


@scenario
def compiled(watched):
    """A step in a graph: it is not seen, and stays one graph where it was. PyTorch's own optimizers break theirs."""

    class Plain(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.1})

        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.data.add_(parameter.grad, alpha=-group["lr"])

    results = []
    for make in (sgd, adam, lambda model: Plain(model.parameters())):
        torch._dynamo.reset()
        model = network()
        optimizer = watched(make(model))
        whole = isinstance(optimizer, Plain)
        step = torch.compile(lambda one=optimizer: one.step(), fullgraph=whole, backend="eager")
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model).backward()
            step()
        results += weights(model)
        close(optimizer)
    return 0, results


@scenario
def nested(watched):
    """An optimizer that calls the step it inherits, one that is not PyTorch's, and a step that fails."""

    class Twice(torch.optim.SGD):
        def step(self, closure=None):
            super().step()
            return super().step(closure)

    class Base(torch.optim.Optimizer):
        def __init__(self, parameters, lr):
            super().__init__(parameters, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= group["lr"] * parameter.grad

    class Derived(Base):
        def step(self, closure=None):
            return super().step(closure)

    class Own:
        def __init__(self, parameters):
            self.parameters = list(parameters)

        def step(self, factor=1.0):
            with torch.no_grad():
                for parameter in self.parameters:
                    parameter -= factor * 0.1 * parameter.grad
            return "stepped"

        def zero_grad(self):
            for parameter in self.parameters:
                parameter.grad = None

    class Failing(torch.optim.SGD):
        fails = False

        @torch.no_grad()
        def step(self, closure=None):
            if self.fails:
                raise FloatingPointError
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= 0.1 * parameter.grad

    results, steps = [], 0
    for make in (Twice, Derived, Own, Failing):
        model = network()
        optimizer = watched(make(model.parameters(), lr=0.1) if make is not Own else Own(model.parameters()))
        Base(network().parameters(), 0.1)  # from here on, PyTorch runs hooks in this one's step too
        steps += train(model, optimizer)
        if make is Failing:
            optimizer.fails = True
            try:
                train(model, optimizer)
            except FloatingPointError:
                optimizer.fails = False
            steps += train(model, optimizer)
        results += weights(model)
        close(optimizer)
    return steps, results


@scenario
def broken(watched):
    """Nothing that fails in netmon fails the training."""
    results = []
    for make in (sgd, horovod):
        model = network()
        optimizer = watched(make(model))
        if hasattr(optimizer, "netmon"):
            for name in ("next", "begin_anew", "first_enqueue", "first_wait", "last_wait"):
                setattr(optimizer.netmon, name, lambda: 1 / 0)
        train(model, optimizer)
        results += weights(model)
        if hasattr(optimizer, "netmon"):
            assert optimizer.netmon.failures >= 6, optimizer.netmon.failures
        close(optimizer)
    for identity in ({"rank": 2**40, "size": 2**41}, {"job": "\udcff"}, {"parameters": -1}):
        model = network()
        optimizer = watched(sgd(model), **identity)
        train(model, optimizer)
        results += weights(model)
    return 0, results


def run(name):
    """Without netmon, then with it."""
    outcomes = []
    for watched in (lambda optimizer, **_: optimizer, lambda optimizer, **i: watch(optimizer, **({"job": name} | i))):
        torch.manual_seed(1)
        outcomes.append(SCENARIOS[name](watched))
    (steps, bare), (_, seen) = outcomes
    same = len(bare) == len(seen) and all(map(torch.equal, bare, seen))
    return {"name": name, "steps": steps, "same": same, "numbers": len(bare)}


def main(names):
    torch.set_num_threads(1)
    for name in names:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                warnings.filterwarnings("error", message=".*lr_scheduler.*optimizer.step.*")
                told = run(name)
        except Exception:
            told = {"name": name, "error": traceback.format_exc()}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(SCENARIOS))
