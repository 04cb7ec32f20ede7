# SPDX-License-Identifier: Apache-2.0
"""What bpf/meter.c has counted: its maps, its rings, and how large they are."""
