# SPDX-License-Identifier: Apache-2.0
"""Settled tables on their way to the disk, and what of a session lies there already."""
