# SPDX-License-Identifier: Apache-2.0
"""The testbed: hosts, switch, training and cross traffic in network namespaces of one machine."""
