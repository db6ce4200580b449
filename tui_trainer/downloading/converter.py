"""Fetch llama.cpp's converter from the source package of llama-cpp-python (MIT), without building the package.

The package index is that of uv or pip. The package is compared with the hash in this file, so any mirror can be used.
"""

import hashlib
import os
import re
import shutil
import tarfile
import tempfile
from base64 import b64encode
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import Request, urlopen

from tui_trainer.data.progress import Meter, Progress
from tui_trainer.errors import FolderError, RunError, system_reason
from tui_trainer.exporting.formats.gguf import SCRIPT, VERSION, converter_folder
from tui_trainer.files.hub_layout import network_reason
from tui_trainer.units import MIB

SIZE_MIB = 73
"""Size of the source package. The converter takes 2 MiB of it."""
_FILE = f"llama_cpp_python-{VERSION}.tar.gz"
_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
_INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
_NEEDED = re.compile(rf"[^/]+/vendor/llama\.cpp/({re.escape(SCRIPT)}|LICENSE|conversion/.+|gguf-py/(gguf/.+|LICENSE))")
_TIMEOUT_SECONDS = 60.0


def index_url() -> str:
    """Return the address of the package's page in the index, without a user name and password."""
    return _index()[0]


def _index() -> tuple[str, dict[str, str]]:
    """Return (address of the package's page, headers with the user name and password of the index, if it has them)."""
    named = next(filter(None, map(os.environ.get, _INDEX_VARIABLES)), "https://pypi.org/simple")
    parts = urlsplit(f"{named.rstrip('/')}/llama-cpp-python/")
    login, _, host = parts.netloc.rpartition("@")
    headers = {"Authorization": f"Basic {b64encode(unquote(login).encode()).decode()}"} if login else {}
    return parts._replace(netloc=host).geturl(), headers


def fetch_converter(progress: Progress, sha256: str = _SHA256) -> Path:
    """Download the source package, unpack what the converter needs, and return its folder. An earlier folder of this
    version is replaced. Raises RunError or FolderError, and then leaves nothing."""
    folder = converter_folder()
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary_path:
            new_folder = Path(temporary_path) / "new"
            with tempfile.TemporaryFile(dir=temporary_path) as package:
                _download(package, progress, sha256)
                _unpack(package, new_folder)
            shutil.rmtree(folder, ignore_errors=True)
            new_folder.rename(folder)
    except tarfile.TarError as error:
        raise RunError(f"{_FILE} cannot be unpacked: {error}") from None
    except OSError as error:
        raise FolderError(f"{folder} could not be written: {system_reason(error)}") from None
    return folder


def _download(package: IO[bytes], progress: Progress, sha256: str) -> None:
    (page_url, headers), digest, done = _index(), hashlib.sha256(), 0
    try:
        with urlopen(Request(page_url, headers={"Accept": "text/html"} | headers), timeout=_TIMEOUT_SECONDS) as page:
            links = re.findall(r'href="([^"]+)"', page.read().decode(errors="replace"))
        link = next((link for link in links if link.partition("#")[0].endswith(f"/{_FILE}")), None)
        if link is None:
            raise RunError(f"{page_url} has no file {_FILE}: name another package index in {_INDEX_VARIABLES[0]}")
        file_url = urljoin(page_url, link)
        is_same_host = urlsplit(file_url).netloc == urlsplit(page_url).netloc
        with urlopen(Request(file_url, headers=headers if is_same_host else {}), timeout=_TIMEOUT_SECONDS) as answer:
            meter = Meter(progress, "downloading", float(answer.headers.get("Content-Length") or 0) or None, "bytes")
            while part := answer.read(MIB):
                package.write(part)
                digest.update(part)
                done += len(part)
                meter.report(done)
            meter.finish(done)
    except (OSError, HTTPException, ValueError) as error:  # ValueError: not a URL
        raise RunError(f"{_FILE} could not be downloaded from {page_url}: {network_reason(error)}") from None
    if digest.hexdigest() != sha256:
        raise RunError(f"{_FILE} from {page_url} is not the file that this version of tui-trainer was tested with")


def _unpack(package: IO[bytes], folder: Path) -> None:
    package.seek(0)
    with tarfile.open(fileobj=package, mode="r:gz") as archive:
        for member in archive:
            if member.isfile() and (match := _NEEDED.fullmatch(member.name)):
                member.name = match[1]
                archive.extract(member, folder, filter="data")
    if not (folder / SCRIPT).is_file():
        raise RunError(f"{_FILE} contains no {SCRIPT}")
