# SPDX-License-Identifier: Apache-2.0
"""The notebooks run from the first to the last cell, on small datasets."""

from pathlib import Path

import pytest
import synthetic_dataset

ROOT = Path(__file__).parents[2]
BOOKS = ROOT / "docs/notebooks"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("notebooks")
    synthetic_dataset.write_dataset(folder, iterations=8, thin=5)
    return folder


def run(name: str, monkeypatch, folder: Path, **variables: str) -> list[dict]:
    """What the cells show, by type."""
    import nbformat  # takes two seconds, of each process that collects the tests
    from nbclient import NotebookClient

    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    book = nbformat.read(BOOKS / name, as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells)
    NotebookClient(book, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in book.cells for output in cell.get("outputs", ())]
    assert [output for output in outputs if output["output_type"] == "stream"] == []
    return [output["data"] for output in outputs]


def test_why_a_step_is_slow(monkeypatch, tmp_path):
    recorded = ROOT / "tests/data/verdict"
    shown = run("why-is-my-step-slow.ipynb", monkeypatch, tmp_path, NETMON_DATA=str(recorded), NETMON_JOB="ddp-5")
    assert sum("image/png" in data for data in shown) == 2
    assert any("all ranks paused" in data.get("text/html", "") for data in shown)


def test_the_thesis_figures(monkeypatch, tmp_path, sweep):
    shown = run("thesis-figures.ipynb", monkeypatch, tmp_path, NETMON_DATA=str(sweep))
    assert sum("image/png" in data for data in shown) == 6


def test_every_notebook_has_a_test():
    text = Path(__file__).read_text()
    assert all(path.name in text for path in BOOKS.glob("*.ipynb"))
