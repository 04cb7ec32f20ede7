# SPDX-License-Identifier: Apache-2.0
"""What is watched of training processes: their libraries, and the timelines that they write."""
