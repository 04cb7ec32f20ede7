# SPDX-License-Identifier: Apache-2.0
"""Everything that touches bcc, libbpf, pyroute2, /proc and /sys."""
