"""What a run is computed with."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from disco_torch.runs.system import describe_system, package_version, read_commit


def test_versions_and_the_processor() -> None:
    system = describe_system(torch.device("cpu"))
    assert system["python"] == platform.python_version() and system["torch"] == torch.__version__
    assert system["disco_torch"] == package_version()
    assert isinstance(system["device"], str) and system["device"] and platform.node() not in system.values()


def test_the_commit_is_read_from_files(tmp_path: Path) -> None:
    assert read_commit(tmp_path) is None
    git, commit = tmp_path / ".git", "0123456789abcdef0123456789abcdef01234567"
    git.mkdir()
    (git / "HEAD").write_text(f"{commit}\n")
    assert read_commit(tmp_path) == commit
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert read_commit(tmp_path) is None
    (git / "packed-refs").write_text(f"# pack-refs\n{'f' * 40} refs/heads/other\n{commit} refs/heads/main\n")
    assert read_commit(tmp_path) == commit
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "refs" / "heads" / "main").write_text("e" * 40 + "\n")
    assert read_commit(tmp_path) == "e" * 40

    tree, own = tmp_path / "tree", git / "worktrees" / "tree"
    tree.mkdir()
    own.mkdir(parents=True)
    (tree / ".git").write_text(f"gitdir: {own}\n")
    (own / "HEAD").write_text("ref: refs/heads/main\n")
    (own / "commondir").write_text("../..\n")
    assert read_commit(tree) == "e" * 40
