# SPDX-License-Identifier: Apache-2.0
"""Whose a connection is: sockets, processes, containers, and what the kernel reports connections being made."""
