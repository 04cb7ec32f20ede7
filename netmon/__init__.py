# SPDX-License-Identifier: Apache-2.0
"""netmon: whose traffic slowed your distributed training, which step it hurt, and by how much."""

__version__ = "0.1.0"
