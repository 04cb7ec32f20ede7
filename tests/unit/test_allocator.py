# SPDX-License-Identifier: Apache-2.0
"""The allocators of a collector's process."""

import subprocess
import sys

import pytest

ARROW = """
import sys
from netmon.cli import make_parser
make_parser(["collector"])[0].parse_args(sys.argv[1:])
from collector.allocator import set_libraries_up
set_libraries_up()
import pyarrow
print(pyarrow.default_memory_pool().backend_name)
"""


@pytest.mark.parametrize("options", [(), ("--keep", "all=2h", "--host-rates", "rows=8e6")])
def test_arrow_has_no_allocator_of_its_own(options: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", ARROW, "collector", "--data", "out", *options]
    assert subprocess.check_output(command, text=True).strip() == "system"


PANDAS = """
import sys
from collector.allocator import do_without_pandas
do_without_pandas()
import numpy as np, pyarrow as pa
table = pa.table({"rows": pa.array(np.arange(3)), "words": pa.array(["one", "two", None])})
print("pandas" in sys.modules, table.to_pandas().shape, "pandas" in sys.modules)
"""


def test_pandas_is_loaded_where_a_frame_is_made() -> None:
    assert subprocess.check_output([sys.executable, "-c", PANDAS], text=True).split("\n")[0] == "False (3, 2) True"
