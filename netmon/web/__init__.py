# SPDX-License-Identifier: Apache-2.0
"""The page in a browser: a live timeline of hosts and jobs."""
