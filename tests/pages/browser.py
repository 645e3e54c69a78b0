"""A headless Chromium that opens a page and says what a reader would notice: errors, requests, what does not fit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
MESSAGES = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
CUT_OFF = """
[...document.querySelectorAll(".panel svg")].flatMap((svg) => {
  const box = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].filter((text) => {
    const own = text.getBoundingClientRect();
    return own.left < box.left - 1 || own.right > box.right + 1 || own.top < box.top - 1 || own.bottom > box.bottom + 1;
  }).map((text) => text.textContent);
})"""


@dataclass(frozen=True)
class Seen:
    """What a page was like.

    Attributes:
      messages: of the console, uncaught errors among them.
      requests: addresses that it asked for, but for its own and data in the page.
      width: of all that is on it, in pixels.
      cut_off: texts of figures that do not lie inside of them.
      color: of the page's background.
    """

    messages: list[Any]
    requests: list[str]
    width: int
    cut_off: list[str]
    color: str


class Browser:
    """Speaks the DevTools protocol over a pipe: the browser reads from file 3 and writes to file 4."""

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None
        theirs, self._to = os.pipe()
        self._from, ours = os.pipe()
        command = f'exec "$@" 3<&{theirs} 4>&{ours}'
        started = ["bash", "-c", command, "bash", CHROMIUM, *OPTIONS, "--remote-debugging-pipe", f"--user-data-dir={folder}"]
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([*started, "about:blank"], pass_fds=(theirs, ours), **quiet)
        os.close(theirs)
        os.close(ours)
        self._rest, self._number, self.events = b"", 0, list[dict[str, Any]]()

    def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        """The answer to a command; events that come before it are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._from, 2**20)
            assert part, "the browser has ended"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        return json.loads(line)

    def look(self, page: Path, width: int, scheme: str = "light") -> Seen:
        """Opens a page in a window of that width."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", session)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", session, **size)
        self.call("Emulation.setEmulatedMedia", session, features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.call("Page.navigate", session, url=page.as_uri())

        def evaluate(script: str) -> Any:
            return self.call("Runtime.evaluate", session, expression=script, returnByValue=True)["result"].get("value")

        until = time.monotonic() + 60.0
        while evaluate("document.readyState") != "complete" or evaluate("location.href") == "about:blank":
            assert time.monotonic() < until, "the page does not load"
            time.sleep(0.05)
        sent = [event["params"]["request"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
        seen = Seen(
            [event["params"] for event in self.events if event["method"] in MESSAGES],
            [each["url"] for each in sent if not each["url"].startswith("data:") and each["url"] != page.as_uri()],
            evaluate("document.documentElement.scrollWidth"),
            evaluate(CUT_OFF),
            evaluate("getComputedStyle(document.body).backgroundColor"),
        )
        self.call("Target.closeTarget", targetId=target)
        return seen

    def close(self) -> None:
        self.call("Browser.close")
        self.process.wait(30)
        os.close(self._to)
        os.close(self._from)
