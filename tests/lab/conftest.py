# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests on real training libraries."""

from collections.abc import Iterator

import pytest
from probed import Probed


@pytest.fixture
def probed() -> Iterator[Probed]:
    """The step programs, loaded and not attached to anything yet."""
    probed = Probed()
    yield probed
    probed.close()
