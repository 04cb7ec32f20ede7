# SPDX-License-Identifier: Apache-2.0
"""Records ↔ protobuf, the generated code included."""
