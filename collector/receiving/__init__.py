# SPDX-License-Identifier: Apache-2.0
"""gRPC in a process of its own: what all agents sent goes over as one set of columns a tick."""
