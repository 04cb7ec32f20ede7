# SPDX-License-Identifier: Apache-2.0
"""Known causes for slow iterations: each begins at a moment of the training, lasts a while and is undone."""
