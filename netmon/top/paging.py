# SPDX-License-Identifier: Apache-2.0
"""What of everything is on the screen."""

from rich.text import Text


def left_out(what: str, begin: int, shown: int, matching: int) -> Text:
    """`links 17–32 of 2,000, worst first; …`: of what is printed."""
    if not shown:
        return Text(f"none of {matching:,} {what} shown", "dim", no_wrap=True)
    part = f"{begin + 1:,}–{begin + shown:,}" if shown > 1 else f"{begin + 1:,}"
    text = f"{what} {part} of {matching:,}, worst first; --all prints them all"
    return Text(text, "dim", no_wrap=True, overflow="ellipsis")
