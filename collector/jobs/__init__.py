# SPDX-License-Identifier: Apache-2.0
"""What belongs to several hosts: who is which rank, common numbers, remote ends, inference, clocks."""
