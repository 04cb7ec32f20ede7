# SPDX-License-Identifier: Apache-2.0
"""Who may import whom. A room that is not listed may import nothing of ours, so a new one has to be entered here."""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TYPES = {"records", "evidence", "views", "errors", "units", "options"} | {
    "marks",
    "own_module",
    "rate_limiter",
    "service",
}
SHARED = TYPES | {"wire", "dl", "version"}
MAY_IMPORT = {
    "netmon": {"analysis", "version"},  # netmon/__init__.py, which imports the former when it is asked
    "version": set(),
    "evidence": set(),
    "records": {"errors", "evidence"},
    "errors": set(),
    "views": {"records"},
    "units": {"errors"},
    "options": {"errors", "units"},
    "own_module": {"errors"},
    "rate_limiter": set(),
    "service": {"errors"},
    "marks": set(),
    "terminal": {"marks"},
    "training": {"marks"},
    "horovod": {"training"},
    "native": set(),
    "wire": TYPES | {"native"},
    "certificates": TYPES | {"wire"},
    "dl": {"native", "records", "evidence", "errors", "views", "units"},
    "kernel": SHARED | {"native"},
    "telemetry": TYPES | {"wire", "version"},
    "agent": SHARED | {"kernel", "telemetry"},
    "top": SHARED,
    "bench": SHARED | {"agent", "kernel", "history", "lab", "training", "terminal", "collector"},
    "history": SHARED,
    "analysis": SHARED | {"history", "report", "top"},
    "simulation": SHARED | {"history"},
    "lab": SHARED | {"horovod", "history"},  # its ring trainer is a training script
    "replay": SHARED,
    "report": SHARED | {"history", "terminal"},
    "trace": SHARED | {"history"},
    "web": SHARED | {"history"},
    "collector": SHARED | {"telemetry"},
    "__main__": {"cli"},
}
CLI = {"cli", "commands"}  # the only place that wires rooms together
DL_THIRD_PARTY = {"numpy", "pandas"}


def modules() -> list[Path]:
    return [path for top in ("netmon", "collector") for path in sorted((ROOT / top).rglob("*.py"))]


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] == "collector":
        return "collector"
    return "netmon" if parts[1] == "__init__" else parts[1]


def imported_names(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import, also inside functions and under TYPE_CHECKING."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def room_of_import(name: str) -> str | None:
    """The room that a dotted name is in; None where it is not ours."""
    parts = name.split(".")
    if parts[0] == "collector":
        return "collector"
    if parts[0] != "netmon":
        return None
    return parts[1] if len(parts) > 1 else "netmon"


def forbidden(path: Path) -> list[str]:
    room = room_of(path)
    allowed = MAY_IMPORT.get(room, set()) | {room}
    return [
        f"{path.relative_to(ROOT)}:{line} imports {name}: {room} may not import {target}"
        for line, name in imported_names(path)
        if room not in CLI and (target := room_of_import(name)) is not None and target not in allowed
    ]


def third_party(path: Path) -> list[tuple[int, str]]:
    return [
        (line, name)
        for line, name in imported_names(path)
        if room_of_import(name) is None and name.split(".")[0] not in sys.stdlib_module_names
    ]


def test_no_arrow_points_the_wrong_way():
    assert [line for path in modules() for line in forbidden(path)] == []


def circle() -> list[str]:
    """Files that import each other, one after the other; empty where none do."""
    names = {
        path: ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in modules()
    }
    known = set(names.values())
    imported = {
        name: {whole if whole in known else whole.rpartition(".")[0] for _, whole in imported_names(path)} & known
        for path, name in names.items()
    }
    try:
        graphlib.TopologicalSorter(imported).prepare()
    except graphlib.CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_no_files_import_each_other():
    assert circle() == []


def test_files_that_import_each_other_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    for name, text in {
        "door": "from collector.host import session\n",
        "host/session": "def f():\n    import collector.host.window\n",
        "host/window": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from collector.door import Door\n",
    }.items():
        path = tmp_path / f"collector/{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert {*circle()} == {"collector.door", "collector.host.session", "collector.host.window"}


@pytest.mark.parametrize("name", ["marks", "horovod"])
def test_what_a_training_script_imports_is_light(name):
    script = f"import sys; before = set(sys.modules); import netmon.{name}; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    foreign = {module.split(".")[0] for module in done.stdout.split()} - sys.stdlib_module_names
    assert foreign == {"netmon"}


def test_the_domain_needs_only_numpy_and_pandas():
    foreign = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in (ROOT / "netmon/dl").rglob("*.py")
        for line, name in third_party(path)
        if name.split(".")[0] not in DL_THIRD_PARTY
    ]
    assert foreign == []


def test_an_arrow_the_wrong_way_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    wrong = tmp_path / "netmon/top/draw.py"
    wrong.parent.mkdir(parents=True)
    wrong.write_text(
        "from ..kernel import ring\ndef f():\n    import netmon.agent.loop\n    from netmon import records\n"
    )
    assert forbidden(wrong) == [
        "netmon/top/draw.py:1 imports netmon.kernel.ring: top may not import kernel",
        "netmon/top/draw.py:3 imports netmon.agent.loop: top may not import agent",
    ]


APART = {"host": "collector.jobs", "jobs": "collector.host"}  # rooms of the collector that know messages only


def across(path: Path) -> list[str]:
    """Where one of the two stages knows the other."""
    parts = path.relative_to(ROOT).parts
    other = APART.get(parts[1], "") if parts[0] == "collector" else ""
    where = path.relative_to(ROOT)
    return [
        f"{where}:{n} imports {name}"
        for n, name in imported_names(path)
        if other and f"{name}.".startswith(f"{other}.")
    ]


def test_the_two_stages_know_each_others_messages_and_not_each_other():
    assert [line for path in modules() for line in across(path)] == []


def test_a_stage_that_knows_the_other_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    wrong = tmp_path / "collector/jobs/who.py"
    wrong.parent.mkdir(parents=True)
    wrong.write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..host import session\n")
    assert across(wrong) == ["collector/jobs/who.py:3 imports collector.host.session"]


def test_the_kernel_side_needs_neither_grpc_nor_pandas():
    """On other kernels its tests run where there are only the few packages that it needs (tests/kernels)."""
    kernel = [path for path in modules() if room_of(path) == "kernel"]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in kernel]
    program = "import sys; sys.modules |= dict.fromkeys(['google', 'grpc', 'pandas', 'pyarrow']); import " + ", ".join(
        names
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
