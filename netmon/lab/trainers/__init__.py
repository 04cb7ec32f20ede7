# SPDX-License-Identifier: Apache-2.0
"""What trains in the testbed: a ring of our own, Horovod and DDP scripts, FSDP, pipelines, experts and more."""
