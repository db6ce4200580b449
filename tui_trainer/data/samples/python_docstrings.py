"""What the functions of Python's standard library say of themselves, by the topic of their module."""

from collections.abc import Mapping
from functools import cache
from zlib import crc32

from tui_trainer.data.samples import Sample
from tui_trainer.data.standard_library import documented_functions

# Which of them are there depends on the version of Python; a module that is missing is passed over.
TOPICS = {
    "windows": "tkinter turtle",
    "internet": "email mailbox http urllib imaplib smtplib ftplib nntplib poplib xmlrpc wsgiref socketserver ssl "
    "socket cgi ipaddress webbrowser html mimetypes",
    "concurrency": "asyncio multiprocessing threading concurrent subprocess queue selectors sched",
    "modules": "importlib pkgutil zipimport runpy modulefinder venv site sysconfig zipapp imp",
    "testing": "logging unittest doctest warnings traceback pdb bdb trace cProfile profile pstats timeit tracemalloc",
    "numbers": "fractions statistics random numbers datetime calendar colorsys decimal uuid hashlib secrets",
    "files": "tarfile zipfile pathlib shutil tempfile gzip bz2 lzma os ntpath posixpath genericpath fileinput filecmp "
    "glob configparser csv plistlib pickle shelve dbm xml json",
    "language": "inspect ast dis symtable tokenize typing pydoc enum collections functools contextlib dataclasses abc "
    "types pickletools codecs re string difflib textwrap",
}
_SHORTEST = 20  # characters: less says nothing


@cache
def python_docstrings() -> list[tuple[str, Mapping[str, object]]]:
    """The first paragraph of each docstring, with its topic. A text that stands twice is there once.

    They are mixed, so that the first rows have all topics.
    """
    topic_of = {module: topic for topic, modules in TOPICS.items() for module in modules.split()}
    rows: dict[str, tuple[str, Mapping[str, object]]] = {}
    for function in documented_functions():
        topic = topic_of.get(function.module.partition(".")[0])
        text = function.first_paragraph
        if topic and len(text) >= _SHORTEST:
            rows.setdefault(text, (function.full_name, {"text": text, "topic": topic}))
    return [rows[text] for text in sorted(rows, key=lambda text: (crc32(text.encode()), text))]


SAMPLE = Sample(
    name="python-docstrings",
    title="docstrings of Python's library, by topic",
    description="first paragraphs of the docstrings of Python's library, each with the topic of its module",
    content=python_docstrings,
)
