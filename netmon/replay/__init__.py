# SPDX-License-Identifier: Apache-2.0
"""Captures of tcpdump in, the agent's records out: the same flows and buckets as bpf/meter.c would have counted."""
