"""Where the released weights are looked for, and that only they come into the cache."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import sys
import threading
import time
import types
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from disco_torch.rules import DiscoUpdateRule
from disco_torch.weights import (
    cache_folder,
    disco103,
    download_disco103_weights,
    find_disco103_weights,
    load_disco103_weights,
    local_disco103_weights,
    save_rule,
)
from disco_torch.weights.files import sha256_of

CONTENT = b"the released weights" * 1000


class Server:
    """A web server on this machine that answers with `content`, or says it has more than it sends."""

    def __init__(self) -> None:
        self.content, self.status, self.missing_bytes, self.requests = CONTENT, 200, 0, 0
        self.seconds_a_byte = 0.0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests += 1
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(outer.content) + outer.missing_bytes))
                self.end_headers()
                if not outer.seconds_a_byte:
                    self.wfile.write(outer.content)
                    return
                with contextlib.suppress(OSError):  # until nobody listens any more
                    for byte in outer.content:
                        self.wfile.write(bytes([byte]))
                        time.sleep(outer.seconds_a_byte)

            def log_message(self, *args: object) -> None:
                """Says nothing."""

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/disco_103.npz"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Stands in for the reference's repository, with other content and its checksum."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # as if it were not installed
    monkeypatch.setattr(disco103, "DISCO103_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    monkeypatch.setattr(disco103, "DISCO103_URL", server.url)
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.http.shutdown()
    server.http.server_close()
    thread.join()


def test_the_released_file_is_what_the_constants_say(disco103_path: Path) -> None:
    assert sha256_of(disco103_path) == disco103.DISCO103_SHA256
    assert disco103_path.stat().st_size == disco103.DISCO103_BYTES


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.setenv("DISCO_TORCH_CACHE", "~/own")
    assert cache_folder() == Path.home() / "own"
    monkeypatch.delenv("DISCO_TORCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "disco-torch"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == Path.home() / ".cache" / "disco-torch"


def test_it_is_downloaded_once(server: Server, cache: Path) -> None:
    assert local_disco103_weights() is None
    assert find_disco103_weights() == cache / "disco_103.npz"
    assert (cache / "disco_103.npz").read_bytes() == CONTENT
    assert find_disco103_weights() == local_disco103_weights() == download_disco103_weights() == cache / "disco_103.npz"
    assert server.requests == 1 and len(list(cache.iterdir())) == 1


def test_another_folder(server: Server, tmp_path: Path) -> None:
    assert download_disco103_weights(str(tmp_path / "here")) == tmp_path / "here" / "disco_103.npz"


@pytest.mark.parametrize("fault", ["wrong", "too long", "cut short", "not found"])
def test_nothing_but_the_released_file_comes_into_the_cache(server: Server, cache: Path, fault: str) -> None:
    if fault == "wrong":
        server.content = b"?" + CONTENT[1:]
    elif fault == "too long":
        server.content = CONTENT + b"?" * disco103.DISCO103_BYTES
    elif fault == "cut short":
        server.content, server.missing_bytes = CONTENT[:-10], 10
    else:
        server.status = 404
    reason = "404" if fault == "not found" else "is not the released Disco103"
    with pytest.raises(FileNotFoundError, match=reason):
        find_disco103_weights()
    assert not cache.exists() or list(cache.iterdir()) == []


def test_a_download_that_trickles_ends(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, all of them would take minutes."""
    fake_hub(monkeypatch, None, seconds=3600.0)
    server.seconds_a_byte = 0.02
    monkeypatch.setattr(disco103, "DEADLINE_SECONDS", 0.5)
    start = time.monotonic()
    with pytest.raises(FileNotFoundError, match=r"it took more than 0\.5 seconds"):
        find_disco103_weights()
    assert time.monotonic() - start < 5.0
    assert not cache.exists() or list(cache.iterdir()) == []


def test_a_damaged_file_in_the_cache_is_replaced(server: Server, cache: Path) -> None:
    cache.mkdir()
    (cache / "disco_103.npz").write_bytes(CONTENT[:-1])
    with pytest.raises(ValueError, match=r"disco_103\.npz: is not the released Disco103, whose sha256 is"):
        local_disco103_weights()
    assert find_disco103_weights().read_bytes() == CONTENT


def test_a_damaged_file_that_cannot_be_replaced_is_refused(server: Server, cache: Path) -> None:
    cache.mkdir()
    (cache / "disco_103.npz").write_bytes(CONTENT[:-1])
    server.status = 500
    with pytest.raises(FileNotFoundError, match=r"the file .*disco_103\.npz is not the released Disco103.*three ways"):
        find_disco103_weights()
    assert (cache / "disco_103.npz").read_bytes() == CONTENT[:-1]


def test_a_folder_that_cannot_be_written_is_said(server: Server, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(FileNotFoundError, match=r"could not be downloaded .*cache"):
        find_disco103_weights()


def test_offline_the_error_names_three_ways(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(FileNotFoundError) as caught:
        load_disco103_weights(DiscoUpdateRule())
    message = str(caught.value)
    assert 'load_disco103_weights(rule, "disco_103.npz")' in message
    assert "set the environment variable DISCO_TORCH_DISCO103" in message
    assert f"put disco_103.npz into the folder {cache}" in message
    assert "huggingface_hub is not installed" in message and "no network" in message
    assert f"{disco103.DISCO103_URL}: " in message


def fake_hub(monkeypatch: pytest.MonkeyPatch, path: Path | None, seconds: float = 0.0) -> list[dict[str, str]]:
    """A `huggingface_hub` that has the file at `path`, or fails after some seconds; returns what it was asked for."""
    asked: list[dict[str, str]] = []

    def hf_hub_download(**kwargs: str) -> str:
        asked.append(kwargs)
        time.sleep(seconds)
        if path is None:
            raise RuntimeError("hub is down")
        return str(path)

    hub = types.ModuleType("huggingface_hub")
    hub.hf_hub_download = hf_hub_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    return asked


def test_the_hub_comes_first(server: Server, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "blob").write_bytes(CONTENT)
    asked = fake_hub(monkeypatch, tmp_path / "blob")
    assert find_disco103_weights().read_bytes() == CONTENT
    assert asked == [{"repo_id": "asystemoffields/disco-103", "filename": "disco_103.npz"}] and server.requests == 0


@pytest.mark.parametrize("fault", ["down", "wrong"])
def test_without_the_hub_it_comes_over_https(
    server: Server, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    (tmp_path / "blob").write_bytes(b"another file")
    asked = fake_hub(monkeypatch, None if fault == "down" else tmp_path / "blob")
    assert find_disco103_weights().read_bytes() == CONTENT
    assert len(asked) == 1 and server.requests == 1


def test_the_variable_comes_before_the_cache(
    server: Server, tiny_rule: DiscoUpdateRule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_disco103_weights()
    given = tmp_path / "given.safetensors"
    save_rule(given, tiny_rule)
    monkeypatch.setenv("DISCO_TORCH_DISCO103", str(given))
    with pytest.warns(UserWarning, match=r"given\.safetensors, which .* names, is not the released Disco103, .* used all"):
        assert find_disco103_weights() == given
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        assert local_disco103_weights() == given
        load_disco103_weights(tiny_rule)
    given.unlink()
    with pytest.raises(
        FileNotFoundError, match=r"DISCO_TORCH_DISCO103 must name .*given\.safetensors', which is not a file"
    ):
        find_disco103_weights()


def test_the_variable_may_name_the_released_file(disco103_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISCO_TORCH_DISCO103", str(disco103_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_disco103_weights() == disco103_path


def test_a_released_file_in_the_cache_is_loaded(disco103_path: Path, cache: Path) -> None:
    cache.mkdir()
    (cache / "disco_103.npz").symlink_to(disco103_path)
    rule, same = DiscoUpdateRule(), DiscoUpdateRule()
    load_disco103_weights(rule)
    load_disco103_weights(same, disco103_path)
    assert all(a.equal(b) for a, b in zip(rule.parameters(), same.parameters(), strict=True))
