# SPDX-License-Identifier: Apache-2.0
"""What a test that fails leaves behind is ended before the next one begins."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    if agents := sys.modules.get("sent_agent"):
        agents.end_all()
