# SPDX-License-Identifier: Apache-2.0
"""What a training script imports: standard library only. netmon/horovod.py is how scripts call it."""
