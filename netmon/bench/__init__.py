# SPDX-License-Identifier: Apache-2.0
"""Measurements of netmon itself: everything as a ratio to something measured in the same run."""
