"""A small Hugging Face Hub on the loopback address: repositories in memory, of one branch each."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class LocalHub:
    """Repositories by name: a list of commits, each a dictionary of files."""

    def __init__(self) -> None:
        self.repositories: dict[str, list[tuple[str, dict[str, bytes]]]] = {}
        self.private: dict[str, bool] = {}
        self.asked: list[str] = []

    def commit(self, name: str, files: dict[str, bytes]) -> str:
        commits = self.repositories.setdefault(name, [])
        before = commits[-1][1] if commits else {}
        oid = hashlib.sha1(f"{name}{len(commits)}".encode()).hexdigest()
        commits.append((oid, before | files))
        return oid

    def find(self, name: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        commits = self.repositories.get(name, [])
        if revision == "main":
            return commits[-1] if commits else None
        return next((commit for commit in commits if commit[0] == revision), None)

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serves until the block ends; gives the address."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: LocalHub
    protocol_version = "HTTP/1.0"  # a connection for each request: none is left when the server has ended

    def log_message(self, *args: Any) -> None:
        pass

    def answer(self, status: int, content: Any = b"", **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/octet-stream" if isinstance(content, bytes) else "application/json")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def missing(self, code: str) -> None:
        self.answer(404, {"error": code}, X_Error_Code=code, X_Error_Message=code)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.hub.asked.append(f"{self.command} {path}")
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path):
            found = self.hub.find(match[1], match[2] or "main")
            if found is None:
                return self.missing("RepoNotFound" if match[1] not in self.hub.repositories else "RevisionNotFound")
            siblings = [{"rfilename": name} for name in found[1]]
            return self.answer(200, {"id": match[1], "sha": found[0], "siblings": siblings, "private": False})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)(?:/.*)?", path):
            found = self.hub.find(match[1], match[2])
            if found is None:
                return self.missing("RevisionNotFound")
            return self.answer(
                200,
                [
                    {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                    for name, content in found[1].items()
                ],
            )
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            found = self.hub.find(match[1], match[2])
            if found is None or match[3] not in found[1]:
                return self.missing("EntryNotFound")
            content = found[1][match[3]]
            etag = f'"{hashlib.sha1(content).hexdigest()}"'
            return self.answer(200, content, ETag=etag, X_Repo_Commit=found[0])
        return self.missing("EntryNotFound")

    def do_POST(self) -> None:
        self.hub.asked.append(f"{self.command} {self.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            self.hub.repositories.setdefault(name, [])
            self.hub.private[name] = bool(asked.get("private")) or asked.get("visibility") == "private"
            return self.answer(200, {"url": f"http://{self.headers['Host']}/{name}"})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main.*", self.path):
            files = [
                {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False} for each in json.loads(body)["files"]
            ]
            return self.answer(200, {"files": files})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main.*", self.path):
            lines = [json.loads(line) for line in body.splitlines() if line]
            files = {
                line["value"]["path"]: base64.b64decode(line["value"]["content"]) for line in lines if line["key"] == "file"
            }
            oid = self.hub.commit(match[1], files)
            url = f"http://{self.headers['Host']}/{match[1]}/commit/{oid}"
            return self.answer(200, {"success": True, "commitUrl": url, "commitOid": oid, "hookOutput": ""})
        return self.answer(200, {})
