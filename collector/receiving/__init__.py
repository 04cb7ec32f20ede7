# SPDX-License-Identifier: Apache-2.0
"""The gRPC server in a process of its own, and the collector's end of the way to it."""
