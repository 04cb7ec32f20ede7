# SPDX-License-Identifier: Apache-2.0
"""The formats by name."""

from pathlib import Path

from netmon.errors import DataError
from netmon.history.selection import Window


def write(name: str, data: Path, window: Window, out: Path) -> str:
    """Write OUT, a file or (chakra) a folder; what was written, in a sentence. Raises DataError."""
    try:
        if name == "chakra":
            from netmon.simulation.chakra import write_chakra

            return write_chakra(data, window, out)
        if name == "pcap":
            from netmon.simulation.headers import write_pcap

            return write_pcap(data, window, out)
        if name == "generator":
            from netmon.simulation.generator import write_generator

            return write_generator(data, window, out)
        from netmon.simulation.flow_lists import write_htsim, write_ns3

        return (write_ns3 if name == "ns3" else write_htsim)(data, window, out)
    except OSError as error:
        raise DataError(f"cannot write {out}: {error.strerror or error}") from None
