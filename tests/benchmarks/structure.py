"""The structure of the package in numbers: rooms, circles between modules, one importer, one caller, packages.

    python tests/benchmarks/structure.py [FOLDER] [OTHER_FOLDER]

FOLDER is a checkout, by default this one; of two, the numbers stand beside each other.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = "tui_trainer"
Graph = Mapping[str, set[str]]


def modules_of(root: Path) -> dict[str, Path]:
    """Each module of the package by its name. Profiles that a wheel brings along are none."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if "_profiles" not in parts:
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@dataclass(frozen=True)
class Import:
    """`name` is what is imported, in full; `deferred` when it happens in a function or only for the type checker."""

    name: str
    line: int
    deferred: bool


@cache
def imports_of(text: str, path: str) -> list[Import]:
    """Every import of a module; `from a import b` counts as `a.b`. `path` is from the package on."""
    package = [PACKAGE, *Path(path).parent.parts]

    def walk(node: ast.AST, deferred: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (Import(alias.name, child.lineno, deferred) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                above = package[: len(package) - child.level + 1] if child.level else []
                start = ".".join([*above, *filter(None, [child.module])])
                yield from (Import(f"{start}.{alias.name}", child.lineno, deferred) for alias in child.names)
            elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
                yield from walk(ast.Module(child.body, []), True)
                yield from walk(ast.Module(child.orelse, []), deferred)
            elif not isinstance(child, ast.expr):  # which holds no import
                yield from walk(child, deferred or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))

    return list(walk(ast.parse(text), False))


def imported(path: Path, root: Path) -> set[str]:
    """What a module imports anywhere, in functions and for the type checker as well: dotted names."""
    text = path.read_text(encoding="utf-8")
    return {found.name for found in imports_of(text, path.relative_to(root / PACKAGE).as_posix())}


def graph_of(modules: Mapping[str, Path], root: Path) -> dict[str, set[str]]:
    """Which modules of the package each of them imports."""
    graph = {}
    for name, path in modules.items():
        targets = {one if one in modules else one.rpartition(".")[0] for one in imported(path, root)}
        graph[name] = {one for one in targets if one in modules and one != name}
    return graph


def circles(graph: Graph) -> list[list[str]]:
    """Modules that import each other, directly or by way of others (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in sorted(graph[name]):
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            start = stack.index(name)
            if len(stack) - start > 1:
                found.append(sorted(stack[start:]))
            del stack[start:]

    for name in graph:
        if name not in index:
            visit(name)
    return found


def uses_of_functions(modules: Mapping[str, Path]) -> tuple[int, int]:
    """(functions, those whose name is defined once and used once). Methods that a library calls are used nowhere."""
    defined: Counter[str] = Counter()
    used: Counter[str] = Counter()
    for path in modules.values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                defined[node.name] += 1
            elif isinstance(node, ast.Name):
                used[node.id] += 1
            elif isinstance(node, ast.Attribute):
                used[node.attr] += 1
    return sum(defined.values()), sum(count == 1 and used[name] == 1 for name, count in defined.items())


def numbers_of(root: Path) -> dict[str, str]:
    """The table's rows by their names."""
    modules = modules_of(root)
    graph = graph_of(modules, root)
    rooms: dict[str, list[int]] = {}
    for name, path in modules.items():
        room = name.split(".")[1] if name.count(".") > 1 or (path.name == "__init__.py" and "." in name) else "(top)"
        rooms.setdefault(room, []).append(len(path.read_text(encoding="utf-8").splitlines()))
    rows = {f"{room}/": f"{sum(lines):,} in {len(lines)}" for room, lines in sorted(rooms.items())}
    rows["all lines in files"] = f"{sum(map(sum, rooms.values())):,} in {len(modules)}"
    joined = circles(graph)
    rows["circles"] = f"{len(joined)}" + (f" (largest of {max(map(len, joined))})" if joined else "")
    importers = Counter(target for targets in graph.values() for target in targets)
    rows["modules with one importer"] = str(sum(count == 1 for count in importers.values()))
    functions, once = uses_of_functions(modules)
    rows["functions"] = f"{functions:,}"
    rows["functions with one caller"] = f"{once:,}"
    top = {one.partition(".")[0] for path in modules.values() for one in imported(path, root)}
    third = sorted(top - {PACKAGE, ""} - set(sys.stdlib_module_names))
    rows["third-party packages"] = f"{len(third)}"
    return rows


def main(arguments: list[str]) -> None:
    folders = [Path(argument) for argument in arguments] or [Path(__file__).resolve().parents[2]]
    tables = [numbers_of(folder) for folder in folders]
    for name in dict.fromkeys(name for table in tables for name in table):
        print(f"{name:28}" + "".join(f"{table.get(name, '-'):>20}" for table in tables))


if __name__ == "__main__":
    main(sys.argv[1:])
