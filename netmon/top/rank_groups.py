# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks as rows: what each is for, what its ranks exchange in a step, and how long they wait in it."""

from rich.text import Text

from netmon.top.filters import exactly
from netmon.top.rows import Kind, Part, numeric

RANK_GROUPS = Kind(
    "groups",
    (
        Part("group", lambda one, *_: Text(one.group, "bold"), lambda one: one.group, 9, 14, worth=99),
        Part("kind", lambda one, *_: one.kind, lambda one: one.kind, 7, 12, worth=9),
        Part("ranks", lambda one, *_: one.ranks, lambda one: one.ranks, 5, 24, worth=8),
        Part("in a step, per rank", lambda one, *_: one.calls, lambda one: one.calls, 20, 90, worth=6, grows=True),
        Part("when", lambda one, *_: one.when, lambda one: one.when, 8, 17, worth=4),
        numeric("waits", lambda one, *_: one.waits, lambda one: one.waited_ns, 8, 26, 7),
    ),
    key=lambda one: (one.group, one.kind, one.calls),
    values=lambda one: {"kind": (one.kind,)},
    term=lambda one: exactly("kind", one.kind),
)
