# SPDX-License-Identifier: Apache-2.0
"""Verdicts during training, by the rows of the last seconds; late verdicts, and advice, by the dataset."""
