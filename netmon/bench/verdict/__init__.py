# SPDX-License-Identifier: Apache-2.0
"""The verdict compared with causes that are known, because they were brought about."""
