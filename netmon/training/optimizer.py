# SPDX-License-Identifier: Apache-2.0
"""The steps of a PyTorch optimizer, and what Horovod's does within them."""

from collections.abc import Callable
from typing import Any

from netmon.training.steps import Steps


def watch(optimizer: Any, **identity: Any) -> Any:
    """Marks every step of a PyTorch optimizer; returns the same optimizer, with its Steps as `.netmon`.

    A step runs from the end of the step before (the first one: from here) to the end of `optimizer.step()`, so
    that the forward pass is in it. A step that fails, as in an elastic job, is none; the one after it begins with
    `optimizer.zero_grad()` or its first gradient. identity: as of Steps.
    """
    if "parameters" not in identity:
        groups = getattr(optimizer, "param_groups", ())
        identity["parameters"] = sum(p.numel() for group in groups for p in group["params"] if p.requires_grad)
    steps = Steps(**identity)
    steps.begin()
    update, clear = _given_up_with(optimizer.step, steps), getattr(optimizer, "zero_grad", None)

    def step(*args: Any, **kwargs: Any) -> Any:
        result = update(*args, **kwargs)
        steps.next()
        return result

    def zero_grad(*args: Any, **kwargs: Any) -> Any:
        steps.begin_anew()
        return clear(*args, **kwargs) if clear else None

    optimizer.step = step
    if clear:
        optimizer.zero_grad = zero_grad
    _watch_communication(optimizer, steps)
    optimizer.netmon = steps
    return optimizer


def _given_up_with(call: Callable[..., Any], steps: Steps) -> Callable[..., Any]:
    """The same call; where it fails, the step under way does."""

    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except BaseException:
            steps.give_up()
            raise

    return called


def _watch_communication(optimizer: Any, steps: Steps) -> None:
    """What Horovod's optimizer does inside a step; any other one has neither of these."""
    hand_over: Callable[..., Any] | None = getattr(optimizer, "_allreduce_grad_async", None)
    synchronize: Callable[..., Any] | None = getattr(optimizer, "synchronize", None)
    if hand_over is None or synchronize is None:
        return
    hand_over, synchronize = _given_up_with(hand_over, steps), _given_up_with(synchronize, steps)

    def handed_over(*args: Any, **kwargs: Any) -> Any:
        steps.first_enqueue()
        return hand_over(*args, **kwargs)

    def synchronized(*args: Any, **kwargs: Any) -> Any:
        steps.first_wait()
        result = synchronize(*args, **kwargs)
        steps.last_wait()
        return result

    optimizer._allreduce_grad_async = handed_over
    optimizer.synchronize = synchronized
