# SPDX-License-Identifier: Apache-2.0
"""Verdicts compared with known, injected causes."""
