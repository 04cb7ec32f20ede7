# SPDX-License-Identifier: Apache-2.0
"""The `kernel` mark: such tests are skipped, with the reason, where this machine or this user cannot run them.

NETMON_REQUIRE_KERNEL=1 turns the skip into a failure, so that nobody takes silence for success. With CI=1 Hypothesis
tries the same examples every time: a change is not refused for what it did not change. The `tensorflow` mark: such
tests are there where Horovod has been built with TensorFlow.
"""

import contextlib
import functools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Tests start hundreds of processes: what one of these has compiled, the next one is not to compile again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as `netmon` has it
# What people see has their own time: here it is the same everywhere.
os.environ["TZ"] = "UTC"
time.tzset()
# A machine that does other things as well is slow; that is no failure.
same_examples = bool(os.environ.get("CI"))
# Tests of the kernel and the lab that measure no time: it is all the same to them what runs beside them.
BESIDE_OTHERS = tuple(
    f"tests/{name}.py"
    for name in (
        *(
            f"kernel/test_{name}"
            for name in (
                *("agent", "coexistence", "counters", "cuts", "differential", "doctor", "full_disk", "hostile"),
                *("interrupts", "kept_programs", "killed_agent", "link_numbers", "matrix", "meter", "namespaces"),
                *("nccl_ras", "owners", "pid_namespace", "privileged", "refusals", "remote_disk", "service_user"),
                *("services", "slow_disk", "tcp_info", "tls_agent", "tunnels", "verbs", "wakes"),
            )
        ),
        *(f"lab/test_{name}" for name in ("hook", "optimizers", "rank_probes")),
    )
)
# Horovod's ranks agree a thousand times a second what to reduce, which takes most of a core of each of them.
os.environ.setdefault("HOROVOD_CYCLE_TIME", "5")  # ms

settings.register_profile(
    "busy", deadline=None, derandomize=same_examples, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy")


@functools.cache
def missing_for_kernel_tests() -> str:
    """Why kernel tests cannot run here; empty where they can."""
    from netmon.kernel.machine import Status, machine_checks

    return "; ".join(f"{check.name}: {check.detail}" for check in machine_checks() if check.status is Status.MISSING)


@functools.cache
def missing_for_tensorflow_tests() -> str:
    """Why tests with TensorFlow are left out; empty where they are not."""
    from netmon.lab.training import BUILD

    built = subprocess.run([*BUILD, "tensorflow", "--if-built"], stdout=subprocess.PIPE, check=True).stdout
    return "" if built.strip() else "Horovod with TensorFlow is not built (make horovod-tensorflow)"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.nodeid.startswith("tests/unit/"))  # so that all workers end alike
    optional = [item for item in items if item.get_closest_marker("tensorflow")]
    if optional and missing_for_tensorflow_tests():
        items[:] = [item for item in items if item not in optional]
        config.hook.pytest_deselected(items=optional)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of several workers one has the kernel and the lab, where what runs beside each other would measure each other."""
    from xdist.scheduler import LoadScopeScheduling

    class OneLab(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return "lab" if path.startswith(("tests/kernel/", "tests/lab/")) and path not in BESIDE_OTHERS else path

    return OneLab(config, log)


def pytest_report_header() -> list[str]:
    reason = missing_for_tensorflow_tests()
    return [f"left out: {reason}"] if reason else []


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("kernel") is None:
        return
    reason = "not root" if os.geteuid() != 0 else missing_for_kernel_tests()
    if not reason:
        return
    if os.environ.get("NETMON_REQUIRE_KERNEL") == "1":
        pytest.fail(f"NETMON_REQUIRE_KERNEL=1, but kernel tests cannot run here: {reason}", pytrace=False)
    pytest.skip(f"kernel tests cannot run here: {reason}")


@pytest.fixture(scope="module")
def as_horovod_is() -> Iterator[None]:
    """Its cycle is a millisecond, and its ranks are as busy while they wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("HOROVOD_CYCLE_TIME")
        yield


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """What a test that fails leaves behind is ended before the next one begins."""
    yield
    if agents := sys.modules.get("sent_agent"):
        agents.end_all()


def _bpf_descriptors() -> set[int]:
    found = set()
    for entry in os.scandir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the directory's own
            if os.readlink(entry.path).startswith("anon_inode:bpf"):
                found.add(int(entry.name))
    return found


@pytest.fixture(autouse=True)
def bpf_ends_with_the_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Programs and maps that a test of the kernel has loaded go with it: one process runs hundreds of these."""
    if request.node.get_closest_marker("kernel") is None:
        yield
        return
    before = _bpf_descriptors()
    yield
    for descriptor in _bpf_descriptors() - before:
        os.close(descriptor)
