# SPDX-License-Identifier: Apache-2.0
"""A private authority in a directory: who may connect to whom, for installations that have none of their own."""
