# SPDX-License-Identifier: Apache-2.0
"""Several workers on one bus: which of them has which hosts, and how a host passes from one to another."""
