# SPDX-License-Identifier: Apache-2.0
"""The one reader of what was stored: tables, past iterations and verdicts, out of a folder or of a collector."""
