# SPDX-License-Identifier: Apache-2.0
"""What belongs to more than one host: who is which rank, common numbers, remote ends, inference, clocks."""
