# SPDX-License-Identifier: Apache-2.0
"""The Parquet files: writing, merging, retention, take-over."""
