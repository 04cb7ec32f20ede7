# SPDX-License-Identifier: Apache-2.0
"""Multiple workers on one bus: which of them has which hosts, and each host's batches out of JetStream."""
