# SPDX-License-Identifier: Apache-2.0
"""`netmon top --once --json`."""

import json

from snapshot_example import example

from netmon.records import CLASS_NAMES
from netmon.top.document import document


def test_a_snapshot_is_plain_json() -> None:
    parsed = json.loads(document(example()))
    assert list(parsed) == [
        "time_ns",
        "share_threshold",
        "share_window_ns",
        "hosts",
        "links",
        "jobs",
        "flows",
        "warnings",
        "totals",
        "page",
        "insecure",
        "version",
    ]
    link = parsed["links"][0]
    assert link["direction"] == "rx"
    assert sorted(link["wire_bps"]) == sorted(CLASS_NAMES)
    assert len(link["wire_bps"]["cross"]) == 100
    assert parsed["links"][-1]["coverage"] is None
    assert parsed["jobs"][0]["source"] == "uprobe"
    assert parsed["jobs"][0]["ranks"][0]["node_shared"] is True
    assert parsed["flows"][0]["class"] == "DL-only"
    assert parsed["flows"][0]["flow"]["owner"]["process"] == "python3"
