# SPDX-License-Identifier: Apache-2.0
"""Configurations of the lab, one after the other: one that fails does not end the others."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from netmon.errors import NetmonError

_Plan = TypeVar("_Plan")
_Result = TypeVar("_Result")


def in_turn(
    plans: Mapping[str, _Plan],
    do: Callable[[_Plan], _Result],
    done: list[_Result],
    failed: list[str],
    progress: Callable[[int], None] = lambda _: None,
) -> bool:
    """Do each; blocks. Returns whether Ctrl-C ended it.

    plans: by name. done, failed: what came of them, the latter by name with the reason. progress: called with how many
    are over.
    """
    try:
        for number, (name, plan) in enumerate(plans.items()):
            progress(number)
            try:
                done.append(do(plan))
            except NetmonError as error:
                failed.append(f"{name}: {error}")
    except KeyboardInterrupt:
        return True
    return False
