# SPDX-License-Identifier: Apache-2.0
"""Offline analysis of the Parquet dataset."""
