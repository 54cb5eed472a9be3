"""The notebooks of the documentation hold their outputs, and every cell runs."""

from __future__ import annotations

import json
from pathlib import Path

import pages
import pytest

import equipoise

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_kept_and_small(path: Path) -> None:
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert path.stat().st_size < 300_000
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))  # run once, from top to bottom
    assert all(output["output_type"] != "error" for cell in code for output in cell["outputs"])
    page = pages.notebook(path)
    assert page.count("data:image/png;base64,") >= 2
    assert page.count("<table") >= 2
    assert "Traceback" not in page


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a kernel of its own, as it is committed: same tables, same words."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", str(Path(equipoise.__file__).parents[1]))
    notebook = nbformat.read(path, 4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    kept = nbformat.read(path, 4)
    for cell, before in zip(notebook.cells, kept.cells, strict=True):
        kinds = [[sorted(output.get("data", {})) for output in of.get("outputs", ())] for of in (cell, before)]
        assert kinds[0] == kinds[1], cell["source"]
