# SPDX-License-Identifier: Apache-2.0
"""Jobs that share links: how well they fit together, by how much to shift one, who is slow, what could be had."""
