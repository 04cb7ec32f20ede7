# SPDX-License-Identifier: Apache-2.0
"""`python -m netmon`."""

import sys

from netmon.cli import main

if __name__ == "__main__":
    sys.exit(main())
