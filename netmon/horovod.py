# SPDX-License-Identifier: Apache-2.0
"""netmon.training under the name by which scripts have called it since there was only Horovod."""

from netmon.training import *  # noqa: F403
from netmon.training import __all__ as __all__
