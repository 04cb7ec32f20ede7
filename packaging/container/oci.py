# SPDX-License-Identifier: Apache-2.0
"""`python packaging/container/oci.py ROOT.tar OUT.tar VERSION ARCHITECTURE`: an image of one layer, as an archive.

It is laid out as OCI's image specification 1.1 says, for podman, skopeo and docker from 25 on; manifest.json is for
older dockers. The same tar makes the same archive.
"""

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

_CONFIG = {
    "User": "netmon",  # the agent's manifest says another one
    "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONUNBUFFERED=1"],
    "Entrypoint": ["netmon"],
    "Cmd": ["--help"],
    "Volumes": {"/data": {}},
    "WorkingDir": "/",
}
_KIND = "application/vnd.oci.image."
_CHUNK = 1 << 20


def main() -> int:
    """Writes OUT.tar."""
    root, out, version, architecture = sys.argv[1:]
    created = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), timezone.utc).isoformat()
    with tempfile.TemporaryFile() as layer, tarfile.open(out, "w") as archive:
        raw = _compress(Path(root), layer)
        packed = _file(archive, layer, _KIND + "layer.v1.tar+gzip")
        config = {
            "created": created,
            "architecture": architecture,
            "os": "linux",
            "config": _CONFIG | {"Labels": _labels(version)},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{raw}"]},
            "history": [{"created": created, "comment": "packaging/container/build"}],
        }
        settings = _json(archive, config, _KIND + "config.v1+json")
        kind = _KIND + "manifest.v1+json"
        manifest = {"schemaVersion": 2, "mediaType": kind, "config": settings, "layers": [packed]}
        found = _json(archive, manifest, kind)
        tag = f"localhost/netmon:{version}"
        found["annotations"] = {"io.containerd.image.name": tag, "org.opencontainers.image.ref.name": tag}
        _add(archive, "index.json", {"schemaVersion": 2, "manifests": [found]})
        _add(archive, "oci-layout", {"imageLayoutVersion": "1.0.0"})
        _add(
            archive,
            "manifest.json",
            [{"Config": _place(settings["digest"]), "RepoTags": [tag], "Layers": [_place(packed["digest"])]}],
        )
    print(out)
    return 0


def _labels(version: str) -> dict[str, str]:
    said = {"title": "netmon", "version": version, "licenses": "Apache-2.0"}
    return {f"org.opencontainers.image.{name}": text for name, text in said.items()}


def _compress(root: Path, into: Any) -> str:
    """The SHA-256 of what is not compressed yet."""
    digest = hashlib.sha256()
    with root.open("rb") as file, gzip.GzipFile("", "wb", 6, into, mtime=0) as packed:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            packed.write(chunk)
    return digest.hexdigest()


def _file(archive: tarfile.TarFile, content: Any, kind: str) -> dict[str, Any]:
    """Adds a blob under its digest; its descriptor."""
    digest = hashlib.sha256()
    content.seek(0)
    while chunk := content.read(_CHUNK):
        digest.update(chunk)
    member = tarfile.TarInfo(_place(f"sha256:{digest.hexdigest()}"))
    member.size, member.mode = content.tell(), 0o644
    content.seek(0)
    archive.addfile(member, content)
    return {"mediaType": kind, "digest": f"sha256:{digest.hexdigest()}", "size": member.size}


def _json(archive: tarfile.TarFile, value: Any, kind: str) -> dict[str, Any]:
    return _file(archive, io.BytesIO(json.dumps(value, sort_keys=True).encode()), kind)


def _add(archive: tarfile.TarFile, name: str, value: Any) -> None:
    content = json.dumps(value, sort_keys=True).encode()
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o644
    archive.addfile(member, io.BytesIO(content))


def _place(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


if __name__ == "__main__":
    sys.exit(main())
