# SPDX-License-Identifier: Apache-2.0
"""The way of rows from agents through the collector to the disk, measured with simulated agents and a known truth."""
