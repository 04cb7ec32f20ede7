# SPDX-License-Identifier: Apache-2.0
"""The figures: each function draws tidy frames onto a matplotlib figure that it is given."""
