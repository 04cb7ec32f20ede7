# SPDX-License-Identifier: Apache-2.0
"""The domain of distributed training on a network: pure numpy, no files, no sockets, no clock."""
