"""A hub on this machine that speaks as much of the real one's HTTP as huggingface_hub asks for."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

_SECONDS_FOR_ANOTHER = 6  # less than what huggingface_hub waits before it asks for the same file again
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """`models` and `data_sets`: name, with @revision where it is not main, to folder.

    `gated` names need the token "secret"; `private` ones cannot be seen without it. `info` replaces, by name, fields of
    what the hub reports about a repository. `cut` stops a file after so many bytes, once. `created` are the new
    repositories, and whether they are private; `received` are the committed files. A file of `pair` is sent once
    another one is requested as well, if that comes soon. `sent` are the files that were sent, each with its repository;
    `requests` are all requests.
    """

    models: dict[str, Path] = field(default_factory=dict)
    data_sets: dict[str, Path] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    gated: set[str] = field(default_factory=set)
    info: dict[str, dict[str, Any]] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    sent: list[tuple[str, str]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    created: dict[str, bool] = field(default_factory=dict)
    received: dict[str, bytes] = field(default_factory=dict)
    pair: dict[str, threading.Barrier] = field(default_factory=dict)
    url: str = ""

    def files_sent(self, name: str = "") -> list[str]:
        """The files that were sent, of one repository or of all."""
        return [file for repository, file in self.sent if name in ("", repository)]


def commit_of(revision: str) -> str:
    if revision in ("main", COMMIT) or re.fullmatch("[0-9a-f]{40}", revision):
        return COMMIT if revision == "main" else revision
    return hashlib.sha1(revision.encode()).hexdigest()


def environment_of(hub: FakeHub, folder: Path) -> dict[str, str]:
    """Return the environment of a process that uses this hub and an empty cache."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    return kept | {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hf"), "TUI_TRAINER_HOME": str(folder / "home")}


def run(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


_ONE_AFTER_ANOTHER = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from tui_trainer.cli import main
for command in json.loads(sys.argv[1]):
    files = [io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2)]
    with redirect_stdout(files[0]), redirect_stderr(files[1]):
        code = main(command)
    print(json.dumps([code, *(file.buffer.getvalue().decode() for file in files)]))
"""


def run_each(*commands: Sequence[str], environment: dict[str, str]) -> list[subprocess.CompletedProcess[str]]:
    """Run commands of tui-trainer one after another in one process, and return their results."""
    done = run("-c", _ONE_AFTER_ANOTHER, json.dumps(commands), environment=environment)
    assert done.returncode == 0, done.stderr
    results = map(json.loads, done.stdout.splitlines())
    return [subprocess.CompletedProcess(command, *found) for command, found in zip(commands, results, strict=True)]


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    # Its default interval of half a second is how long a shutdown takes.
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._file(with_body=False)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self._info(path) if path.startswith(("/api/models/", "/api/datasets/")) else self._file(with_body=True)

    def do_POST(self) -> None:
        path = unquote(self.path.partition("?")[0])
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if path == "/api/validate-yaml":  # of a model card
            return self._answer(200, b'{"errors": [], "warnings": []}', {"Content-Type": "application/json"})
        if path == "/api/repos/create" or "/preupload/" in path or "/commit/" in path:
            return self._take(path, body)
        return self._paths_info(body)

    def _take(self, path: str, body: bytes) -> None:
        """Accept a new repository, the question how its files are sent, or a commit with the files in it."""
        if self.headers.get("Authorization") != "Bearer secret":
            return self._answer(403, b"{}", {})
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            # Older versions of huggingface_hub send a flag.
            self.hub.created[name] = asked.get("visibility") == "private" or asked.get("private") is True
            told: Any = {"url": f"{self.hub.url}/{name}"}
        elif "/preupload/" in path:
            files = json.loads(body)["files"]
            told = {"files": [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in files]}
        else:
            lines = [json.loads(line) for line in body.splitlines()]
            sent = [line["value"] for line in lines if line["key"] == "file"]
            self.hub.received |= {file["path"]: base64.b64decode(file["content"]) for file in sent}
            name = path.removeprefix("/api/models/").partition("/commit/")[0]
            told = {"success": True, "commitUrl": f"{self.hub.url}/{name}/commit/{COMMIT}", "commitOid": COMMIT}
        return self._answer(200, json.dumps(told).encode(), {"Content-Type": "application/json"})

    def _paths_info(self, body: bytes) -> None:
        """Report facts of single files, for a client that reads ranges of them."""
        kind, _, rest = unquote(self.path).removeprefix("/api/").partition("/")
        name, _, revision = rest.partition("/paths-info/")
        asked = json.loads(body)["paths"]
        folder = self._folder(kind, name, revision) or Path("/nowhere")
        found = [path for path in asked if (folder / path).is_file()]
        told = [{"type": "file", "path": one, "size": (folder / one).stat().st_size, "oid": "0"} for one in found]
        self._answer(200, json.dumps(told).encode(), {"Content-Type": "application/json"})

    def parse_request(self) -> bool:
        parsed = super().parse_request()
        self.hub.requests.append(getattr(self, "path", ""))
        return parsed

    @property
    def _revisions(self) -> list[str]:
        return [name.partition("@")[2] for name in (*self.hub.data_sets, *self.hub.models) if "@" in name]

    def _folder(self, kind: str, name: str, revision: str) -> Path | None:
        revision = next((given for given in self._revisions if commit_of(given) == revision), revision)
        at = "" if revision in ("main", COMMIT) else f"@{revision}"
        return (self.hub.data_sets if kind == "datasets" else self.hub.models).get(name + at)

    def _info(self, path: str) -> None:
        _, _, kind, rest = unquote(path).split("/", 3)
        name, what, revision = rest.partition("/tree/" if "/tree/" in rest else "/revision/")
        revision = next((given for given in self._revisions if commit_of(given) == revision), revision or "main")
        hidden = name in self.hub.private and self.headers.get("Authorization") != "Bearer secret"
        if hidden or self._folder(kind, name, "main") is None:
            return self._refuse(404, "RepoNotFound", "Repository not found")
        folder = self._folder(kind, name, revision)
        if folder is None:
            return self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        files = [path for path in folder.rglob("*") if path.is_file()]
        listed = [
            {
                "rfilename": str(path.relative_to(folder)),
                "size": path.stat().st_size,
                "blobId": hashlib.sha1(path.read_bytes()).hexdigest(),
            }
            for path in files
        ]
        if what == "/tree/":
            siblings = self.hub.info.get(name, {}).get("siblings", listed)
            tree = [{"type": "file", "path": one["rfilename"], "size": one["size"], "oid": "0"} for one in siblings]
            return self._answer(200, json.dumps(tree).encode(), {"Content-Type": "application/json"})
        content = {
            "_id": "1",
            "id": name,
            "modelId": name,
            "sha": commit_of(revision),
            "private": False,
            "gated": "manual" if name in self.hub.gated else False,
            "siblings": listed,
            "cardData": {"license": "apache-2.0"},
            "tags": [],
            "downloads": 0,
            "likes": 0,
        }
        return self._answer(
            200, json.dumps(content | self.hub.info.get(name, {})).encode(), {"Content-Type": "application/json"}
        )

    def _file(self, *, with_body: bool) -> None:
        place, _, rest = self.path.partition("?")[0].strip("/").partition("/resolve/")
        kind = "datasets" if place.startswith("datasets/") else "models"
        name = place.removeprefix("datasets/")
        revision, _, file = map(unquote, rest.partition("/"))
        if with_body and file:
            self.hub.sent.append((name, file))
        if name in self.hub.gated and self.headers.get("Authorization") != "Bearer secret":
            return self._refuse(403, "GatedRepo", "Access to this model is restricted")
        path = (self._folder(kind, name, revision) or Path("/nowhere")) / file
        if not path.is_file():
            return self._refuse(404, "EntryNotFound", "Entry not found")
        if with_body and file in self.hub.pair:
            with suppress(threading.BrokenBarrierError):
                self.hub.pair[file].wait(_SECONDS_FOR_ANOTHER)
        content = path.read_bytes()
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": commit_of(revision),
            "Accept-Ranges": "bytes",
        }
        first, _, last = (self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or len(content)) + 1, len(content))
        if start or end < len(content):
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
        cut = self.hub.cut.pop(file, None) if with_body else None
        is_part = "Content-Range" in headers
        return self._answer(206 if is_part else 200, content[start:end], headers, with_body, cut)

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._answer(status, b"{}", {"X-Error-Code": code, "X-Error-Message": message})

    def _answer(
        self, status: int, body: bytes, headers: dict[str, str], with_body: bool = True, cut: int | None = None
    ) -> None:
        self.send_response(status)
        for header, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(header, value)
        self.end_headers()
        if with_body and self.command != "HEAD":
            self.wfile.write(body[:cut])
        if cut is not None:
            self.close_connection = True
