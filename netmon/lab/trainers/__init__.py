# SPDX-License-Identifier: Apache-2.0
"""What trains in the testbed: a ring of our own, ordinary Horovod and DDP scripts, and FSDP, pipelines and experts."""
