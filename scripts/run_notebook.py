"""Runs the cells of notebooks from top to bottom and stores what they print and draw; no Jupyter is needed.

    python scripts/run_notebook.py docs/tutorials/*.ipynb

Each runs in a temporary folder of its own, so that no run is left behind. Figures are stored when a cell leaves them open.
"""

from __future__ import annotations

import argparse
import ast
import base64
import io
import json
import os
import tempfile
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

os.environ.setdefault("MPLBACKEND", "Agg")

from matplotlib import pyplot as plt


def run_cell(source: str, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs a cell and returns its outputs: printed text, the value of a last expression, and open figures."""
    tree, outputs = ast.parse(source), list[dict[str, Any]]()
    last = (
        tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";") else None
    )
    value, printed = None, io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        exec(compile(tree, "<cell>", "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(keepends=True)})
    if value is not None:
        outputs.append({"output_type": "execute_result", "data": {"text/plain": repr(value).splitlines(keepends=True)}})
    for number in plt.get_fignums():
        picture = io.BytesIO()
        plt.figure(number).savefig(picture, format="png", dpi=80, bbox_inches="tight", metadata={"Software": None})
        image = base64.b64encode(picture.getvalue()).decode()
        outputs.append({"output_type": "display_data", "data": {"image/png": image, "text/plain": ["<Figure>"]}})
    plt.close("all")
    return outputs


def run_notebook(content: dict[str, Any]) -> dict[str, Any]:
    """Runs all code cells in the current folder, stores their outputs in `content`, and returns the variables."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell["outputs"], cell["execution_count"] = run_cell("".join(cell["source"]), namespace), count
            for output in cell["outputs"]:
                if output["output_type"] != "stream":
                    output["metadata"] = {}
                if output["output_type"] == "execute_result":
                    output["execution_count"] = count
    return namespace


def main(paths: list[Path]) -> None:
    for path in paths:
        content, path = json.loads(path.read_text()), path.resolve()
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            run_notebook(content)
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        print(path.name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", type=Path, nargs="+")
    main(parser.parse_args().notebooks)
