"""What a wheel must hold: every package, and every file that is no source. `scripts/check_wheel.py` tries a real one."""

from __future__ import annotations

import tomllib
from pathlib import Path

import disco_torch

PACKAGE = Path(disco_torch.__file__).parent
ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def files(suffix: str) -> list[Path]:
    found = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return [path for path in found if (path.suffix == ".py") == (suffix == ".py")]


def test_every_folder_of_source_is_a_package() -> None:
    assert SETTINGS["packages"]["find"] == {"include": ["disco_torch*"]}
    folders = {path.parent for path in files(".py")}
    assert len(folders) > 10 and all((folder / "__init__.py").is_file() for folder in folders)


def test_every_other_file_is_package_data() -> None:
    patterns = SETTINGS["package-data"]["disco_torch"]
    packed = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    others = set(files("others"))
    assert {path.name for path in others} >= {"py.typed", "birch.safetensors"}
    assert others <= packed, "setuptools leaves these out of a wheel"
