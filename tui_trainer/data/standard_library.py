"""What the standard library says about its own functions: read from the sources, which every Python has.

Nothing is imported: modules do things when they are.
"""

import ast
import gc
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tui_trainer.errors import DataError

# Programs, tables and what some systems leave out.
_LEFT_OUT = {"distutils", "encodings", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "turtledemo"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class DocumentedFunction:
    """A function or a method. `path` is its place in the module, "PurePath.joinpath"; `arguments` without brackets."""

    module: str
    path: str
    arguments: str
    docstring: str

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def full_name(self) -> str:
        return f"{self.module}.{self.path}"

    @property
    def first_paragraph(self) -> str:
        """On one line."""
        return " ".join(self.docstring.strip().split("\n\n", maxsplit=1)[0].split())


@cache
def documented_functions() -> tuple[DocumentedFunction, ...]:
    """All functions with a docstring, in the order of their modules and lines. Takes 2 seconds, once in a process.

    Raises DataError where the library's sources are not installed.
    """
    # Syntax trees are so many objects that looking for garbage among them takes three times as long as parsing.
    was_on = gc.isenabled()
    gc.disable()
    try:
        found = tuple(function for module, path in module_files() for function in _functions_in(module, path))
    finally:
        if was_on:
            gc.enable()
    if not found:
        raise DataError("the sources of Python's standard library are not installed", hint="choose another data.path")
    return found


@cache
def module_files() -> tuple[tuple[str, Path], ...]:
    """(name, file) of the public modules, tests left out, sorted by their names."""
    root = Path(sysconfig.get_path("stdlib"))
    found = [
        (".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"), path)
        for name in sys.stdlib_module_names - _LEFT_OUT
        if not name.startswith("_")
        for path in (root / f"{name}.py", *(root / name).rglob("*.py"))
        if path.is_file() and not {"test", "tests"}.intersection(path.relative_to(root).parts)
    ]
    return tuple(sorted(found))


def _functions_in(module: str, path: Path) -> Iterator[DocumentedFunction]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # some Pythons carry templates that are no code
    for place, function in _functions(tree.body, ""):
        if docstring := ast.get_docstring(function):
            yield DocumentedFunction(module, place, ast.unparse(function.args), docstring)


def _functions(body: Sequence[ast.stmt], place: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Functions of a module and of its classes, those behind an `if` or a `try` too, and none inside another."""
    for node in body:
        if isinstance(node, _FUNCTIONS):
            yield f"{place}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{place}{node.name}.")
        elif isinstance(node, ast.If | ast.Try):
            yield from _functions(node.body, place)
