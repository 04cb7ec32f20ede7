# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' manifests and Ansible's example: valid, as confined as the units, and with options that there are."""

import configparser
import json
import subprocess
import sys
from argparse import ArgumentParser
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from netmon.kernel.privilege import ROOT_CAPABILITIES
from netmon.options import defaults_from

yaml = pytest.importorskip("yaml")

PACKAGING = Path(__file__).parents[2] / "packaging"
BASE, EXAMPLE = (PACKAGING / "kubernetes" / name for name in ("base", "overlays/example"))


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = (each for path in sorted(BASE.glob("*.yaml")) for each in documents(path) if each["kind"] == kind)
    return found


def parse(command: str, options: list[str]) -> None:
    parser = ArgumentParser(exit_on_error=False)
    import_module(f"netmon.commands.{command}").arguments(parser)
    parser.parse_args(options)


def test_every_manifest_is_valid_by_kubernetes_own_schema():
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    version = kubernetes_validate.latest_version()
    validated = []
    for path in sorted(BASE.glob("*.yaml")):
        for document in documents(path):
            if document["kind"] != "Kustomization":
                kubernetes_validate.validate(document, version, strict=True)
                validated.append(document["kind"])
    assert {"Namespace", "ServiceAccount", "Service", "StatefulSet", "DaemonSet", "NetworkPolicy"} == set(validated)


@pytest.mark.parametrize("folder", [BASE, EXAMPLE])
def test_kustomize_finds_everything_that_it_names(folder):
    (kustomization,) = documents(folder / "kustomization.yaml")
    for name in kustomization["resources"]:
        assert (folder / name).exists(), name
    for patch in kustomization.get("patches", ()):
        target = of_kind(patch["target"]["kind"])
        assert target["metadata"]["name"] == patch["target"]["name"]
        for change in yaml.safe_load(patch["patch"]):
            parent = target
            for step in change["path"].split("/")[1:-1]:
                parent = parent[step]


@pytest.mark.parametrize(("kind", "command"), [("DaemonSet", "agent"), ("StatefulSet", "collector")])
def test_containers_are_started_with_options_that_there_are(kind, command):
    (container,) = of_kind(kind)["spec"]["template"]["spec"]["containers"]
    assert container["args"][0] == command
    parse(command, container["args"][1:])


def test_the_agent_has_the_capabilities_of_its_unit_and_those_to_become_another_user():
    unit = configparser.ConfigParser(interpolation=None, strict=False, comment_prefixes=("#",))
    unit.optionxform = str
    unit.read(PACKAGING.parent / "systemd/netmon-agent.service")
    wanted = {name.removeprefix("CAP_") for name in unit["Service"]["AmbientCapabilities"].split()}
    (container,) = of_kind("DaemonSet")["spec"]["template"]["spec"]["containers"]
    security = container["securityContext"]
    assert set(security["capabilities"]["add"]) == wanted | {name.removeprefix("CAP_") for name in ROOT_CAPABILITIES}
    assert security["capabilities"]["drop"] == ["ALL"]
    assert (security["privileged"], security["allowPrivilegeEscalation"]) == (False, False)
    assert security["readOnlyRootFilesystem"]


def test_the_collector_has_no_capability_and_is_not_root():
    pod = of_kind("StatefulSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not pod["automountServiceAccountToken"]


def test_ansible_accepts_the_playbook():
    pytest.importorskip("ansible")
    playbook = Path(sys.executable).with_name("ansible-playbook")
    done = subprocess.run(
        [playbook, "--syntax-check", "-i", "inventory.ini", "site.yml"],
        cwd=PACKAGING / "ansible",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("number", [0, 1])
def test_what_ansible_writes_is_a_configuration(tmp_path, number):
    """As the template does: a line per key, its value in JSON."""
    (plays,) = documents(PACKAGING / "ansible/site.yml")
    variables = plays[number]["vars"]
    lines = [f"{key} = {json.dumps(value)}" for key, value in variables["netmon_settings"].items()]
    (tmp_path / "netmon.toml").write_text("\n".join(lines))
    parser = ArgumentParser()
    import_module(f"netmon.commands.{variables['netmon_role']}").arguments(parser)
    defaults_from(tmp_path / "netmon.toml", parser)
    parser.parse_args([])
