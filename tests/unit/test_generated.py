# SPDX-License-Identifier: Apache-2.0
"""netmon/wire's generated code is what proto/netmon.proto says now."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = ("netmon_pb2.py", "netmon_pb2.pyi", "netmon_pb2_grpc.py")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory) -> Path:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    plugin = Path(sys.executable).with_name("protoc-gen-mypy")
    if not plugin.exists():
        pytest.skip("mypy-protobuf is not installed")
    folder = tmp_path_factory.mktemp("generated")
    command = [sys.executable, "-m", "grpc_tools.protoc", "-Inetmon/wire=proto", f"--plugin=protoc-gen-mypy={plugin}"]
    outputs = [f"--{kind}_out={folder}" for kind in ("python", "grpc_python", "mypy")]
    subprocess.run([*command, *outputs, "netmon/wire/netmon.proto"], cwd=ROOT, check=True)
    return folder / "netmon/wire"


@pytest.mark.parametrize("name", GENERATED)
def test_generated_code_is_up_to_date(fresh, name):
    assert (ROOT / "netmon/wire" / name).read_bytes() == (fresh / name).read_bytes(), "stale: run `make proto`"


def test_nothing_else_is_generated(fresh):
    assert sorted(path.name for path in fresh.iterdir()) == sorted(GENERATED)
