# SPDX-License-Identifier: Apache-2.0
"""What trains in the testbed: a ring all-reduce of our own, and an ordinary Horovod script."""
