# SPDX-License-Identifier: Apache-2.0
"""Everything that touches bcc, bpf(2), pyroute2, /proc and /sys."""
