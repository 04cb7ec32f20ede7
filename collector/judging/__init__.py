# SPDX-License-Identifier: Apache-2.0
"""Verdicts while the training goes on: rows are kept for some seconds, and looked at where a step was slow."""
