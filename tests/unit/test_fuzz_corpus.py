# SPDX-License-Identifier: Apache-2.0
"""What fuzzing began with and found worth keeping still leads to a result or a refusal, without atheris."""

import pytest
from targets import CORPUS, TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus(name: str) -> None:
    inputs = sorted((CORPUS / name).iterdir())
    for path in inputs:
        data = path.read_bytes()
        for cut in (data, data[:-1], data[: len(data) // 2], data + data):
            TARGETS[name](cut)
    assert inputs
