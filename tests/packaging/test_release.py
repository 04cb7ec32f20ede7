# SPDX-License-Identifier: Apache-2.0
"""A release: the version is the same everywhere, the image is one, the list of libraries has those of every extra.

`make test-release` looks at all of it on a machine that has never seen netmon.
"""

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from netmon.version import __version__

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"


def test_examples_and_changelog_name_this_version() -> None:
    kustomization = (PACKAGING / "kubernetes/base/kustomization.yaml").read_text()
    assert re.findall(r"newTag: (.*)", kustomization) == [__version__]
    assert re.findall(r"netmon_version=(.*)", (PACKAGING / "ansible/inventory.ini").read_text()) == [__version__]
    newest = re.findall(r"^## (\S+) \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.M)[0]
    assert newest[0] == __version__
    assert re.fullmatch(r"unreleased|\d{4}-\d\d-\d\d", newest[1])


def test_the_list_of_libraries_has_those_of_every_extra() -> None:
    done = subprocess.run(
        [sys.executable, PACKAGING / "tools/installed.py", "netmon[all]"], capture_output=True, text=True, check=True
    )
    names = {line.partition("==")[0] for line in done.stdout.splitlines()}
    assert {"pyarrow", "scipy", "textual", "nats-py", "aiohttp", "opentelemetry-sdk", "perfetto"} <= names
    assert "netmon" not in names


def archive(folder: Path, root: Path) -> dict[str, bytes]:
    """The files of an image by their names."""
    out = folder / "image.tar"
    command = [sys.executable, PACKAGING / "container/oci.py", root, out, "1.2.3", "amd64"]
    subprocess.run(command, env=os.environ | {"SOURCE_DATE_EPOCH": "1"}, capture_output=True, check=True)
    with tarfile.open(out) as content:
        return {each.name: content.extractfile(each).read() for each in content}  # type: ignore[union-attr]


def test_an_image_is_laid_out_as_oci_and_docker_say(tmp_path: Path) -> None:
    root = tmp_path / "root.tar"
    with tarfile.open(root, "w") as content:
        content.addfile(tarfile.TarInfo("data"), io.BytesIO())
    files = archive(tmp_path, root)

    def blob(descriptor: dict[str, Any]) -> bytes:
        found = files["blobs/" + descriptor["digest"].replace(":", "/")]
        assert (len(found), f"sha256:{hashlib.sha256(found).hexdigest()}") == (descriptor["size"], descriptor["digest"])
        return found

    (entry,) = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(blob(entry))
    (layer,) = manifest["layers"]
    unpacked = gzip.decompress(blob(layer))
    assert unpacked == root.read_bytes()
    config = json.loads(blob(manifest["config"]))
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(unpacked).hexdigest()}"]
    assert config["config"]["Entrypoint"] == ["netmon"]
    (docker,) = json.loads(files["manifest.json"])
    assert docker["RepoTags"] == ["localhost/netmon:1.2.3"]
    assert all(name in files for name in (docker["Config"], *docker["Layers"]))
    assert archive(tmp_path, root) == files
