# SPDX-License-Identifier: Apache-2.0
"""A worker's intake from the bus: hosts are taken and released, each one's batches come from JetStream."""
