# SPDX-License-Identifier: Apache-2.0
"""Several workers on one bus: which of them has which hosts, and each host's batches out of JetStream."""
