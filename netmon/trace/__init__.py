# SPDX-License-Identifier: Apache-2.0
"""The dataset as a trace for Perfetto: hosts with their ranks, flows and rates, profilers' traces on the same clock."""
