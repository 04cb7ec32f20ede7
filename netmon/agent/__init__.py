# SPDX-License-Identifier: Apache-2.0
"""The agent: drains the kernel, names the flows' owners, takes marks, and streams batches to the collector."""
