# SPDX-License-Identifier: Apache-2.0
"""Whose a connection is: sockets, processes, containers, and what the kernel tells of connections being made."""
