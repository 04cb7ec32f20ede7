# SPDX-License-Identifier: Apache-2.0
"""Cross traffic: what else the links of a shared cluster carry."""
