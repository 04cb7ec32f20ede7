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
