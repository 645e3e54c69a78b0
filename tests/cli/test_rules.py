"""`disco-torch rules`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from disco_torch.cli import main
from disco_torch.cli.rules import Rules
from disco_torch.rules import DiscoConfig, DiscoUpdateRule, MetaNetConfig
from disco_torch.weights import save_npz, save_rule


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one."""
    monkeypatch.delenv("DISCO_TORCH_DISCO103", raising=False)
    monkeypatch.setenv("DISCO_TORCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def row(output: str, name: str) -> list[str]:
    """The cells of a table's line that begins with `name`."""
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in output.splitlines() if "│" in line]
    return next(cells for cells in rows if cells[0] == name)


def page(output: str) -> dict[str, str]:
    """The texts of a page by their labels."""
    texts: dict[str, str] = {}
    label = ""
    for line in output.splitlines()[1:]:
        if line[:1] in ("┏", "c", "p"):  # the lists behind the page
            break
        if not line.startswith(" "):
            label = line.split("  ")[0]
        texts[label] = f"{texts.get(label, '')} {line.removeprefix(label).strip()}".strip()
    return texts


def test_the_list(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    assert Rules().run() == 0
    output = capsys.readouterr().out
    assert row(output, "disco103")[1:4] == ["discovered", "754,778", "not downloaded"]
    assert row(output, "actor-critic")[1:4] == ["hand-written", "0", "none needed"]
    assert row(output, "policy-gradient")[1:4] == ["hand-written", "0", "none needed"]
    assert not cache.exists()


def test_the_list_says_where_the_weights_are(
    capsys: pytest.CaptureFixture[str], cache: Path, disco103_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.mkdir()
    (cache / "disco_103.npz").write_bytes(b"damaged")
    Rules().run()
    lines = [line.split("│") for line in capsys.readouterr().out.splitlines() if "│" in line]
    weights = " ".join(cells[4].strip() for cells in lines)  # a cell folds where the path in it ends
    assert "is not the released Disco103" in weights
    monkeypatch.setenv("DISCO_TORCH_DISCO103", str(disco103_path))
    Rules().run()
    assert row(capsys.readouterr().out, "disco103")[3] == str(disco103_path)


def test_disco103_from_its_file(
    capsys: pytest.CaptureFixture[str], disco103_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISCO_TORCH_DISCO103", str(disco103_path))
    assert Rules("disco103", arrays=True).run() == 0
    output = capsys.readouterr().out
    assert row(output, "lstm/sequential_1/conv1_d/w")[1:] == ["[1, 516, 16]", "float32", "8,256"]
    assert "42 arrays, 754,778 parameters in total" in output
    assert "config.net.prediction_size = 600" in output and "dac840a1" in output


def test_disco103_without_its_file(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    assert Rules("disco103", arrays=True).run() == 0
    output = capsys.readouterr().out
    assert "not downloaded" in output and "42 arrays, 754,778 parameters in total" in output
    assert row(output, "meta_net.y_head.weight")[1:] == ["[600, 256]", "float32", "153,600"]
    assert not cache.exists()


def test_a_rule_without_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert Rules("actor-critic", arrays=True).run() == 0
    lines = page(output := capsys.readouterr().out)
    assert lines["weights"] == "none needed" and lines["hyper-parameters"] == "entropy cost 0.01"
    assert lines["settings"].startswith("num bins 1;") and "config.num_bins = 1" in output and "│" not in output
    assert Rules("policy-gradient", arrays=True).run() == 0
    assert "config" not in (output := capsys.readouterr().out) and "settings" not in page(output)


def test_a_page_instead_of_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert Rules("birch").run() == 0
    output = capsys.readouterr().out
    assert output.startswith("birch (discovered): Ships with disco-torch") and "│" not in output
    assert len(output.splitlines()) <= 25 and max(map(len, output.splitlines()[1:])) <= 100
    lines = page(output)
    assert lines["size"] == "42 arrays, 17,312 parameters in total"
    assert "--preset birch" in lines["source"] and "weights/birch.safetensors, sha256 " in lines["weights"]
    assert "prediction size 8; hidden size 32" in lines["settings"]
    assert "started from random weights" in lines["found by"]
    assert lines["use it"] == "disco-torch train --rule birch" and lines["in Python"] == 'load_rule("birch")'
    assert Rules("birch", arrays=True).run() == 0
    assert "provenance.config.window = 5" in capsys.readouterr().out


def test_a_file_that_says_what_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rule = DiscoUpdateRule(DiscoConfig(net=MetaNetConfig(prediction_size=5, hidden_size=3)))
    save_rule(tmp_path / "rule.safetensors", rule, provenance={"seed": 7})
    (tmp_path / "no_ending").write_bytes((tmp_path / "rule.safetensors").read_bytes())
    for name in ("rule.safetensors", "no_ending"):
        assert Rules(str(tmp_path / name), arrays=True).run() == 0
        output = capsys.readouterr().out
        assert row(output, "meta_net.y_head.weight")[1:] == ["[5, 3]", "float32", "15"]
        assert "config.net.hidden_size = 3" in output and "provenance.seed = 7" in output
        lines = page(output)
        assert lines["kind"] == "rule" and lines["found by"] == "seed 7"
        assert lines["use it"] == f"disco-torch train --rule {tmp_path / name}"
        total = sum(param.numel() for param in rule.parameters())
        assert f"42 arrays, {total:,} parameters in total" in output


def test_any_npz(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    save_npz(tmp_path / "any.npz", {"[bold]x": np.zeros((2, 3), np.int16), "text": np.array("hello")})
    assert Rules(str(tmp_path / "any.npz"), arrays=True).run() == 0
    output = capsys.readouterr().out
    assert set(page(output)) == {"weights", "size"}  # nothing says that it is a rule, or how to use it
    assert row(output, "[bold]x")[1:] == ["[2, 3]", "int16", "6"] and row(output, "text")[3] == "1"
    assert "config" not in output and "provenance" not in output


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"must be one of .*, got 'nope', which is neither"):
        Rules("nope").run()
    (tmp_path / "bad.npz").write_bytes(b"PK, but no archive")
    with pytest.raises(ValueError, match=r"bad\.npz: the archive cannot be read"):
        Rules(str(tmp_path / "bad.npz")).run()


def test_it_is_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules"]) == 0
    assert "disco103" in capsys.readouterr().out
    assert main(["rules", "actor-critic"]) == 0
    assert "V-trace" in capsys.readouterr().out
