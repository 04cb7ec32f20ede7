# SPDX-License-Identifier: Apache-2.0
"""The agent: drains the kernel, names flows' owners, makes marks iterations, and streams batches to the collector."""
