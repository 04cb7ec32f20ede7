# SPDX-License-Identifier: Apache-2.0
"""Loops over rows in C, where an installation could build them; each has a twin in numpy beside its caller."""
