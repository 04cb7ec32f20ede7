# SPDX-License-Identifier: Apache-2.0
"""The steps of a PyTorch optimizer, and what Horovod's does within them.

Whatever happens in here, the training goes on as if it were not here: what fails is counted in `Steps.failures`.
"""

import sys
import weakref
from collections.abc import Callable
from functools import wraps
from types import MethodType
from typing import Any

from netmon.training.steps import Steps

_HANDING_OVER = ("_allreduce_grad_async", "_grouped_allreduce_grad_async")  # of Horovod's optimizer
_DEEPEST = 8  # wrappers around an optimizer


def watch(
    optimizer: Any,
    job: str | None = None,
    rank: int | None = None,
    size: int | None = None,
    parameters: int | None = None,
) -> Any:
    """Marks every step of a PyTorch optimizer; returns the same optimizer, with its Steps as `.netmon`.

    A step runs from the end of the step before (the first one: from here) to the end of `optimizer.step()`, so
    that the forward pass is in it. A step that fails, as in an elastic job, is none; the one after it begins with
    `optimizer.zero_grad()` or its first gradient. Copies of the optimizer are not watched, and a step that
    torch.compile has made a part of a graph is not seen. job, rank, size, parameters: as of Steps.
    """
    innermost = _innermost(optimizer)
    steps = getattr(innermost, "netmon", None)
    if not isinstance(steps, Steps) or steps.is_copy:
        steps = Steps(job, rank, size, _parameters(innermost) if parameters is None else parameters)
        try:
            _Watch(innermost, steps).begin()
        except Exception as error:
            steps.failures += 1
            print(f"netmon: cannot watch {type(optimizer).__name__}: {error!r}; training goes on", file=sys.stderr)
    for watched in (optimizer, innermost):
        try:
            watched.netmon = steps
        except Exception:  # it takes no attributes
            steps.failures += 1
    return optimizer


def _innermost(optimizer: Any) -> Any:
    """Accelerate and Lightning put optimizers into one of their own, whose step() does not always step."""
    for _ in range(_DEEPEST):
        inner = getattr(optimizer, "optimizer", None)
        if not (hasattr(inner, "step") and hasattr(inner, "param_groups")):
            break
        optimizer = inner
    return optimizer


def _parameters(optimizer: Any) -> int:
    """Numbers that are trained; 0 where they are not known yet, as of lazy modules."""
    try:
        groups = getattr(optimizer, "param_groups", ())
        return int(sum(p.numel() for group in groups for p in group["params"] if p.requires_grad))
    except Exception:
        return 0


class _Watch:
    """What is reported of one optimizer, of no copy of it, and of nothing that torch.compile only traces."""

    def __init__(self, optimizer: Any, steps: Steps) -> None:
        self._optimizer: Callable[[], Any] = weakref.ref(optimizer)
        self._steps = steps
        compiler = getattr(sys.modules.get("torch"), "compiler", None)
        self._traced: Callable[[], bool] = getattr(compiler, "is_compiling", bool)
        self._under_way = self._calls_back = False

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, or what is read from a file, watches nothing."""
        return _copy, ()

    def begin(self) -> None:
        """The first step begins."""
        optimizer = self._optimizer()
        if _runs_hooks_once(optimizer):
            optimizer.register_step_pre_hook(self.before)
            optimizer.register_step_post_hook(self.after)
        else:
            self._wrap("step", self._step)
        self._wrap("zero_grad", self._zero_grad)
        if hasattr(optimizer, "synchronize"):
            for name in _HANDING_OVER:
                self._wrap(name, self._hand_over)
            if hasattr(optimizer, _HANDING_OVER[0]):
                self._wrap("synchronize", self._synchronize)
        self._steps.begin()

    def before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """PyTorch is about to step. Where the step before has not ended, it has failed."""
        if self._traced() or optimizer is not self._optimizer():
            return
        try:
            if self._under_way:
                self._steps.give_up()
                self._steps.begin_anew()
            self._under_way = True
            self._calls_back = len(args) > 1 or bool(kwargs)  # a closure, which may clear the gradients
        except Exception:
            self._steps.failures += 1

    def after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """PyTorch has stepped."""
        if self._traced() or optimizer is not self._optimizer():
            return
        self._under_way = False
        try:
            self._steps.next()
        except Exception:
            self._steps.failures += 1

    def _wrap(self, name: str, around: Callable[..., Any]) -> None:
        """A bound method, as everybody expects, which PyTorch's schedulers can wrap in their turn and mark."""
        method = getattr(self._optimizer(), name, None)
        if method is None:
            return
        # The optimizer must not hold itself: what it holds is freed with it, not some time later.
        own = getattr(method, "__self__", None) is self._optimizer()
        call: Callable[..., Any] = method.__func__ if own else lambda _, *args, **kwargs: method(*args, **kwargs)

        @wraps(call if own else method)
        def wrapped(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._traced() or optimizer is not self._optimizer():
                return call(optimizer, *args, **kwargs)
            return around(call, optimizer, *args, **kwargs)

        setattr(self._optimizer(), name, MethodType(wrapped, self._optimizer()))

    def _send(self, what: Callable[[], None]) -> None:
        try:
            what()
        except Exception:
            self._steps.failures += 1

    def _step(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = self._or_given_up(call, *args, **kwargs)
        self._send(self._steps.next)
        return result

    def _zero_grad(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._under_way and not self._calls_back:
            self._under_way = False
            self._send(self._steps.give_up)
        self._send(self._steps.begin_anew)
        return call(*args, **kwargs)

    def _hand_over(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._send(self._steps.first_enqueue)
        return self._or_given_up(call, *args, **kwargs)

    def _synchronize(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._send(self._steps.first_wait)
        result = self._or_given_up(call, *args, **kwargs)
        self._send(self._steps.last_wait)
        return result

    def _or_given_up(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except BaseException:
            self._send(self._steps.give_up)
            raise


def _copy() -> _Watch:
    nothing = _Watch.__new__(_Watch)
    nothing._traced, nothing._optimizer = bool, bool  # no optimizer is False
    return nothing


def _runs_hooks_once(optimizer: Any) -> bool:
    """PyTorch runs the hooks in the step() of every class, once an object of that very class has been made.

    So Horovod's optimizer, which calls the step that it inherits, runs them twice.
    """
    if not hasattr(optimizer, "_optimizer_step_post_hooks") or not hasattr(optimizer, "register_step_post_hook"):
        return False  # before PyTorch 2.0, or not PyTorch's
    kinds = [kind for kind in type(optimizer).__mro__ if "register_step_post_hook" not in vars(kind)]
    steps = [vars(kind)["step"] for kind in kinds if "step" in vars(kind)]
    return len(steps) == 1 and hasattr(steps[0], "hooked")
