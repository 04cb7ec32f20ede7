# SPDX-License-Identifier: Apache-2.0
"""Options of a training script on a real library; standard library only, for Horovod's environment imports it."""

import argparse


def options(description: str) -> argparse.ArgumentParser:
    """The model, its pace, and where the script writes down what it saw."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--params", type=int, default=4_000_000)
    parser.add_argument("--layers", default="", help="JSON file with the parameters of each layer, instead")
    parser.add_argument("--compute", type=float, default=0.1, help="seconds of forward and backward pass, mostly waits")
    parser.add_argument("--backward-share", type=float, default=0.0, help="of them, in which gradients come")
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--pauses", default="", help="as in pauses.py")
    parser.add_argument("--transfers", default="", help="AFTER:upload or download:BYTES:ADDRESS:PORT, comma-separated")
    parser.add_argument("--log", required=True, help="CSV file for the moments of every iteration")
    return parser
