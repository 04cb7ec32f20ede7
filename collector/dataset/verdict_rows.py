# SPDX-License-Identifier: Apache-2.0
"""Verdicts as rows of the table `verdicts`."""

from collections.abc import Sequence
from dataclasses import asdict

import pyarrow as pa

from collector.dataset.tables import SCHEMAS
from netmon.dl.verdict.verdict_text import columns
from netmon.views import Verdict


def verdict_table(verdicts: Sequence[Verdict]) -> pa.Table:
    """One row each."""
    rows = [columns(one) | {"ranks": [asdict(each) for each in one.ranks]} for one in verdicts]
    schema = SCHEMAS["verdicts"]
    arrays = []
    for field in schema:
        values = [row[field.name] for row in rows]
        word = pa.types.is_dictionary(field.type)
        arrays.append(pa.array(values, pa.string()).dictionary_encode() if word else pa.array(values, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)
