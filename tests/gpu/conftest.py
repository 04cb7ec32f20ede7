# SPDX-License-Identifier: Apache-2.0
"""The fixtures of the kernel tests, from their conftest.py."""

from conftest import network, tmp_path  # type: ignore[import-not-found]

__all__ = ["network", "tmp_path"]
