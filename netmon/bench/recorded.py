# SPDX-License-Identifier: Apache-2.0
"""Where the labelled tables are that come with a checkout."""

from pathlib import Path

from netmon.errors import DataError

_FOLDER = Path(__file__).parents[2] / "tests" / "data" / "inference"


def recorded_runs() -> Path:
    """The directory of the labelled tables. Raises DataError where netmon was installed without them."""
    if not any(_FOLDER.glob("*.parquet")):
        raise DataError("cannot score the recorded runs: they come with a checkout of netmon only; give PATH")
    return _FOLDER
