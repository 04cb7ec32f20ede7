# SPDX-License-Identifier: Apache-2.0
"""The live view: frozen snapshots, drawn. Where they come from is the caller's business."""
