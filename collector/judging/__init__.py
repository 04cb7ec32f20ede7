# SPDX-License-Identifier: Apache-2.0
"""Verdicts while the training goes on, by the rows of the last seconds; what is too late for them,
and advice, by the dataset."""
