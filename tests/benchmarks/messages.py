"""List the texts that a user can see: every string of the package with two words or more that is not a docstring.

python tests/benchmarks/messages.py [FOLDER ...]          each with its place; {} stands for a value
python tests/benchmarks/messages.py --since COMMIT        how many there are, and how many were changed since
python tests/benchmarks/messages.py --random 60           some of them, to read with fresh eyes
"""

import argparse
import ast
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "tui_trainer"
_WORDS = re.compile(r"[A-Za-z']{2,}[,.:;]? +[A-Za-z'{]")
_NOT_SHOWN = {"compile", "getLogger", "sub", "fullmatch", "search", "match", "add_marker"}


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each message in a module."""
    tree = ast.parse(source)
    hidden = {id(node) for node in _not_shown(tree)}
    for node in ast.walk(tree):
        if id(node) in hidden or not (text := _text(node)):
            continue
        hidden.update(id(inner) for inner in ast.walk(node))
        if _WORDS.search(text):
            yield getattr(node, "lineno", 0), text


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return ""


def _not_shown(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield docstrings of all kinds, patterns, and texts of assertions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value
        elif isinstance(node, ast.Assert) and node.msg:
            yield from ast.walk(node.msg)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _NOT_SHOWN:
            yield from (inner for argument in node.args[:1] for inner in ast.walk(argument))


def of_commit(commit: str, folders: list[str]) -> set[str]:
    """Return the messages that the package had at a commit."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout

    paths = git("ls-tree", "-r", "--name-only", commit, *folders).splitlines()
    return {text for path in paths if path.endswith(".py") for _, text in messages(git("show", f"{commit}:{path}"))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", default=[PACKAGE])
    parser.add_argument("--since", metavar="COMMIT")
    parser.add_argument("--random", type=int, default=0)
    asked = parser.parse_args()
    found = [
        (f"{path.relative_to(ROOT)}:{line}", text)
        for folder in asked.folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in messages(path.read_text())
    ]
    if asked.since:
        before, now = of_commit(asked.since, asked.folders), {text for _, text in found}
        print(f"{len(before):,} messages at {asked.since}, {len(now):,} now: {len(now & before):,} are the same")
        return
    for place, text in random.sample(found, asked.random) if asked.random else found:
        print(f"{place}: {text!r}")


if __name__ == "__main__":
    main()
