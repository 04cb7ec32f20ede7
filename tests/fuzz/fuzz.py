# SPDX-License-Identifier: Apache-2.0
"""Coverage-guided fuzzing of one target: python tests/fuzz/fuzz.py TARGET FOLDER [libFuzzer's options].

FOLDER: where inputs that reach something new are kept, and `crash-…` of what fails; it begins with the corpus.
"""

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent))

with atheris.instrument_imports(include=["netmon", "collector", "targets"]):
    import targets


def main() -> None:
    name, folder, *options = sys.argv[1:]
    kept = Path(folder) / name
    kept.mkdir(parents=True, exist_ok=True)
    where = [str(kept), str(targets.CORPUS / name), f"-artifact_prefix={kept}/crash-", *options]
    atheris.Setup([sys.argv[0], *where], targets.TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
