# SPDX-License-Identifier: Apache-2.0
"""The verdict held against causes that are known, because they were brought about."""
