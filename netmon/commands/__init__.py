# SPDX-License-Identifier: Apache-2.0
"""One module per command: HELP, EXAMPLES, arguments(parser) and run(args)."""
