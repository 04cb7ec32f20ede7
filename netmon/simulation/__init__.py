# SPDX-License-Identifier: Apache-2.0
"""A recorded training as the input of simulators, of tools that read captures, and of the lab."""
