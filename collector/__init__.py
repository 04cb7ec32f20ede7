# SPDX-License-Identifier: Apache-2.0
"""The collector: streams of agents in, classified and iteration-stamped rows and live snapshots out."""
