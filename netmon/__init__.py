# SPDX-License-Identifier: Apache-2.0
"""netmon: whose traffic slowed your distributed training, which step it hurt, and by how much."""

from typing import TYPE_CHECKING

from netmon.version import __version__

if TYPE_CHECKING:
    from os import PathLike

    from netmon.analysis import Live, Recording

__all__ = ["__version__", "open"]


def open(where: "str | PathLike[str]", tls: "str | None" = None) -> "Recording | Live":
    """A dataset's folder, or the address of a collector (HOST:PORT, unix:PATH), for pandas: see netmon.analysis.

        import netmon
        data = netmon.open("out/demo")
        data.iterations(job="training")

    tls: the folder with the certificates that a collector asks for. Nothing is imported before this is called.
    Raises DataError where there is no such folder, UnreachableError where no collector answers.
    """
    from netmon.analysis import open_data

    return open_data(str(where), tls)
