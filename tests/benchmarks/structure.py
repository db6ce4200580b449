"""Print the structure of a checkout as a table: lines, files and imports of each room, and how tests reach the program.

    python tests/benchmarks/structure.py [FOLDER ...]

FOLDER is a checkout, by default this one. The figures of several checkouts stand beside each other.
`tests/test_layers.py` uses the import graph.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = "tui_trainer"
# Modules through which users, other programs and screens reach everything else. A test that imports no other module of
# the package, patches none and reads no private attribute uses front doors alone.
FRONT_DOORS = (
    "cli",
    "errors",
    "launching.run_lifecycle",
    "launching.open_run",
    "runs.events",
    "runs.folder",
    "runs.journal",
    "runs.state",
    "ui.app",
    "ui.main",
    "units",
)
# Documented methods of named tuples.
PUBLIC_IN_SPITE_OF_THE_NAME = {"_asdict", "_fields", "_make", "_replace"}
Graph = Mapping[str, set[str]]


def modules_of(root: Path) -> dict[str, Path]:
    """Return each module of the package by its dotted name. Bundled profiles are not modules."""
    modules = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if "_profiles" not in parts:
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


@dataclass(frozen=True)
class Import:
    """`name` is the full dotted name. `deferred` means inside a function or only for the type checker."""

    name: str
    line: int
    deferred: bool


@cache
def imports_of(text: str, path: str) -> list[Import]:
    """Return every import of a module. `from a import b` counts as `a.b`; `path` starts inside the package."""
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
            elif not isinstance(child, ast.expr):  # expressions hold no import
                yield from walk(child, deferred or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))

    return list(walk(ast.parse(text), False))


def graph_of(modules: Mapping[str, Path], root: Path) -> dict[str, set[str]]:
    """Return the modules of the package that each module imports, deferred imports included."""
    graph = {}
    for name, path in modules.items():
        imports = imports_of(path.read_text("utf-8"), path.relative_to(root / PACKAGE).as_posix())
        targets = {one.name if one.name in modules else one.name.rpartition(".")[0] for one in imports}
        graph[name] = {target for target in targets if target in modules and target != name}
    return graph


def circles(graph: Graph) -> list[list[str]]:
    """Return the groups of modules that import each other (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

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
                components.append(sorted(stack[start:]))
            del stack[start:]

    for name in graph:
        if name not in index:
            visit(name)
    return components


def import_lines(tree: ast.Module) -> int:
    """Return the lines of import statements, counting bracketed ones whole."""
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in imports)


# How tests reach the program


def patches_the_package(tree: ast.Module) -> bool:
    """Return whether a test replaces an attribute of the package with `setattr` or `patch`."""
    ours = set(_names_from_the_package(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            target = node.args[0]
            if node.func.attr in {"setattr", "delattr", "object", "patch"}:
                if isinstance(target, ast.Constant) and str(target.value).startswith(f"{PACKAGE}."):
                    return True
                first = target
                while isinstance(first, ast.Attribute):
                    first = first.value
                if isinstance(first, ast.Name) and first.id in ours:
                    return True
    return False


def _names_from_the_package(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == PACKAGE:
                    yield alias.asname or PACKAGE


def reads_private_names(tree: ast.Module) -> bool:
    """Return whether a test reads an attribute or imports a name that begins with one underscore."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            names = [alias.name for alias in node.names]
        if any(
            name.startswith("_") and not name.startswith("__")
            for name in names
            if name not in PUBLIC_IN_SPITE_OF_THE_NAME
        ):
            return True
    return False


def imports_front_doors_only(tree: ast.Module) -> bool:
    """Return whether everything that a test imports from the package comes from `FRONT_DOORS`."""
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names if alias.name.split(".")[0] == PACKAGE}
    inside = {name.removeprefix(PACKAGE).removeprefix(".") for name in modules}
    return all(name == "" or any(f"{name}.".startswith(f"{door}.") for door in FRONT_DOORS) for name in inside)


# The table


def table(root: Path) -> dict[str, str]:
    """Return the figures of one checkout by their names."""
    rooms: dict[str, list[tuple[int, int]]] = {}
    modules = modules_of(root)
    for path in modules.values():
        relative, text = path.relative_to(root / PACKAGE), path.read_text("utf-8")
        room = relative.parts[0] if len(relative.parts) > 1 else "(top)"
        rooms.setdefault(room, []).append((len(text.splitlines()), import_lines(ast.parse(text))))
    rows = {f"{room}/": _sizes(files) for room, files in sorted(rooms.items())}
    rows["product"] = _sizes(file for files in rooms.values() for file in files)
    rows["circles of imports"] = str(len(circles(graph_of(modules, root))))
    texts = {path: path.read_text("utf-8") for path in sorted((root / "tests").rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    rows["tests"] = _sizes((len(text.splitlines()), import_lines(trees[path])) for path, text in texts.items())
    tests = [tree for path, tree in trees.items() if path.name.startswith("test_")]
    patching, private = list(map(patches_the_package, tests)), list(map(reads_private_names, tests))
    doors = [
        imports_front_doors_only(tree) and not patches and not reads
        for tree, patches, reads in zip(tests, patching, private, strict=True)
    ]
    rows["files with tests"] = str(len(tests))
    for name, found in {
        "patch our modules": patching,
        "read private names": private,
        "front doors only": doors,
    }.items():
        rows[f"  {name}"] = f"{sum(found)}, {sum(found) / max(len(found), 1):.0%}"
    return rows


def _sizes(files: Iterable[tuple[int, int]]) -> str:
    sizes = list(files)
    return f"{sum(lines for lines, _ in sizes):,} in {len(sizes)}, {sum(imports for _, imports in sizes):,} imports"


def main(folders: list[str]) -> None:
    tables = [table(Path(folder)) for folder in folders or [Path(__file__).resolve().parents[2]]]
    for name in dict.fromkeys(name for rows in tables for name in rows):
        print(f"{name:24}" + "".join(f"{rows.get(name, '-'):>34}" for rows in tables))


if __name__ == "__main__":
    main(sys.argv[1:])
