# SPDX-License-Identifier: Apache-2.0
"""The documentation's site: it can be searched as it lies on the disk, and fetches nothing from elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from browser import looking, started

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    words = ["build", "--quiet", "--config-file", "docs/mkdocs.yml", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run([sys.executable, "-m", "mkdocs", *words], cwd=ROOT, check=True, env=environment)
    return folder


@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", ["index.html", "reference/dataset.html"])
def test_it_is_searched_from_the_disk(site: Path, page: str) -> None:
    with started() as browser, looking(browser, (site / page).as_uri()) as tab:
        tab.keyboard.press("/")
        tab.keyboard.type("spool")
        tab.wait_for_selector(".md-search-result__item", state="attached")
        assert tab.inner_text(".md-search-result__meta").strip().endswith("matching documents")
        names = tab.evaluate("performance.getEntriesByType('resource').map((one) => one.name)")
        assert [name for name in names if not name.startswith("file:")] == []
        assert tab.wrong == []
