# SPDX-License-Identifier: Apache-2.0
"""The kernels that `make test-kernels` boots, and the user space each is given: all of it Debian's own packages."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One machine. Suites are Debian's; packages come from them, wheels for that Python from PyPI."""

    name: str
    why: str
    architecture: str  # as Debian says it
    kernel: str  # a metapackage, which depends on the kernel to be had now
    kernel_suite: str
    suite: str  # of Python, libc, iproute2
    bcc_suite: str
    python: str  # its version, for the wheels; empty: whatever the suite has
    minutes: int  # at most: an emulated CPU is 10 to 20 times slower, and the machine may be busy
    mark: str = "matrix"  # of the tests that run there
    packages: tuple[str, ...] = ()  # beside PACKAGES


_CLOUD, _CLOUD_ARM, _LARGE_PAGES = "linux-image-cloud-amd64", "linux-image-cloud-arm64", "linux-image-arm64-16k"

_RDMA = ("rdma-core", "ibverbs-providers", "perftest", "python3-pyverbs")

ROWS = (
    Row("5.10", "no tcx; bcc 0.18", "amd64", _CLOUD, "bullseye", "bookworm", "bullseye", "3.11", 40),
    Row("6.1", "no tcx: clsact", "amd64", _CLOUD, "bookworm", "bookworm", "bookworm", "3.11", 40),
    Row("6.12", "tcx", "amd64", _CLOUD, "trixie", "trixie", "trixie", "3.13", 40),
    Row("newest", "newest kernel and bcc", "amd64", _CLOUD, "sid", "sid", "sid", "", 40),
    Row("arm64", "aarch64; no tcx", "arm64", _CLOUD_ARM, "bookworm", "bookworm", "bookworm", "3.11", 90),
    Row("arm64-16k", "aarch64; pages of 16 KB", "arm64", _LARGE_PAGES, "trixie", "trixie", "trixie", "3.13", 90),
    Row("rdma", "RDMA over Ethernet", "amd64", "linux-image-amd64", "sid", "sid", "sid", "", 40, "rdma", _RDMA),
)

PACKAGES = (
    "python3",
    "python3-sdnotify",
    "iproute2",
    "linux-libc-dev",
    "busybox-static",
    "kmod",
    "libcap2-bin",
    "util-linux",
)
WHEELS = (
    "numpy>=2",
    "pyroute2>=0.9",
    "rich>=13.7",
    "pytest>=8",
    "pytest-timeout>=2.3",
    "hypothesis>=6.100",
)
MODULES = (
    *("veth", "bonding", "dummy", "bridge", "sch_ingress", "cls_bpf", "cls_flower", "act_police"),
    *("inet_diag", "tcp_diag", "udp_diag"),
    *("rdma_rxe", "ib_uverbs", "rdma_ucm"),
)
