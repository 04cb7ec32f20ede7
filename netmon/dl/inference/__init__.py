# SPDX-License-Identifier: Apache-2.0
"""Jobs, their pattern and their iterations, found in the traffic alone, while it happens."""
