# SPDX-License-Identifier: Apache-2.0
"""Which netmon this is."""

__version__ = "0.1.0"
