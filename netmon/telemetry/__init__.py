# SPDX-License-Identifier: Apache-2.0
"""What a running agent or collector says of itself: /metrics, /health and /ready, its log."""
