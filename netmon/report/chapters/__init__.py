# SPDX-License-Identifier: Apache-2.0
"""The report's contents: which tables each chapter has, and how they follow from the dataset."""
