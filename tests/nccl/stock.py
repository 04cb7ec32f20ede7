# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own wheels of NCCL: where each of them tells what it sends, or why that is unknown. One after the other is
fetched, read and removed. As arguments: package==version.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from netmon.errors import KernelError
from netmon.kernel.training import nccl_layout
from netmon.kernel.training.nccl import checked
from netmon.kernel.training.symbols import Reading

STOCK = {
    "nvidia-nccl-cu12==2.21.5": "NCCL before 2.23 does not keep the size of a transfer",
    "nvidia-nccl-cu12==2.23.4": "",
    "nvidia-nccl-cu12==2.25.1": "",
    "nvidia-nccl-cu12==2.26.5": "",
    "nvidia-nccl-cu12==2.27.5": "",
    "nvidia-nccl-cu13==2.29.7": "",
    "nvidia-nccl-cu13==2.30.7": "",
    "nvidia-nccl-cu13==2.32.3": "",
}
"""Why nothing is known of it."""


def read(library: Path) -> tuple[str, str]:
    """What is found in it, and why nothing is."""
    descriptor = os.open(library, os.O_RDONLY)
    try:
        reading = Reading(descriptor, (), nccl_layout.__name__, nccl_layout.SECONDS)
        found = checked(reading.answer())
    except KernelError as error:
        return "", str(error)
    finally:
        os.close(descriptor)
    layout = found["layout"]
    probes = ", ".join(f"{name} {len(places)}" for name, places in found["probes"].items())
    way = "sum of a sub" if layout["total"] else "each transfer"
    return f"{probes}; {way}; a sub {layout['sub_bytes']} B; {reading.cost_ns / 1e9:.2f} s", ""


def main() -> int:
    wrong = 0
    for wheel in sys.argv[1:] or STOCK:
        with tempfile.TemporaryDirectory() as folder:
            fetch = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--no-cache-dir",
                "-d",
                folder,
                wheel,
            ]
            subprocess.run(fetch, check=True, stderr=subprocess.DEVNULL)
            (archive,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(archive) as files:
                library = Path(files.extract("nvidia/nccl/lib/libnccl.so.2", folder))
            archive.unlink()
            found, reason = read(library)
        print(f"{wheel}: {found or f'unknown: {reason}'}", flush=True)
        wrong += reason != STOCK.get(wheel, reason)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
