"""The structure of the package in numbers: rooms, circles between modules, names, advice, children, seconds of tests.

    python tests/benchmarks/structure.py [FOLDER] [OTHER_FOLDER] [--details] [--durations LOG]...

FOLDER is a checkout, by default this one; of two, the numbers stand beside each other. `--details` lists below the
table what was counted: which setting has advice where, which processes there are, which private names. LOG is what
`pytest --durations=0 --durations-min=0` printed or a JUnit XML: the first of FOLDER, the second of OTHER_FOLDER.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from itertools import zip_longest
from pathlib import Path
from typing import TypeGuard
from xml.etree import ElementTree

PACKAGE = "tui_trainer"
Graph = Mapping[str, set[str]]
Places = dict[str, list[str]]

FEW_LINES = 4
# What says something about settings, by the beginning of its path; the first that fits counts.
ADVICE = {
    "checks": ("checklist/",),
    "doctor": ("doctor/",),
    "remedies": ("planning/remedies.py",),
    "ways": ("planning/deadline_ways.py",),
    "gains": ("bench/gains.py", "bench/fastest_settings.py", "planning/measured_gains.py"),
    "advice": ("advice/",),
    "plan": ("planning/",),
}
# Where names of tasks and heads may stand: what reads the configs of others, the schema, and the arithmetic of heads.
NAMED_APART = {
    "importers": ("importing/",),
    "schema": ("config/",),
    "heads": ("models/heads.py", "models/modules.py", "losses/"),
}
_TEST_TIME = re.compile(r"^\s*(\d+(?:\.\d+)?)s (?:setup|call|teardown)\s+(\S+?\.py)(?:::|\s*$)", re.MULTILINE)
_DEAREST = 20


@dataclass(frozen=True)
class Structure:
    """The table's rows by their names, and what was counted for them: lines by heading."""

    rows: dict[str, str] = field(default_factory=dict)
    details: Places = field(default_factory=dict)


@dataclass(frozen=True)
class Module:
    """One file of the package. `name` is dotted, `path` from the package on."""

    name: str
    path: str
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        return self.path.partition("/")[0] if "/" in self.path else "(top)"


def modules_of(root: Path) -> dict[str, Path]:
    """Each module of the package by its name. Profiles that a wheel brings along are none."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if "_profiles" not in parts:
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def read_modules(root: Path) -> list[Module]:
    """Every module of the package, parsed."""
    modules = []
    for name, path in modules_of(root).items():
        text = path.read_text(encoding="utf-8")
        modules.append(Module(name, path.relative_to(root / PACKAGE).as_posix(), text, ast.parse(text)))
    return modules


# Imports and circles


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


def import_lines(modules: Iterable[Module]) -> int:
    """Lines of import statements, those in brackets counted whole."""
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


# Functions and classes


def scoped(name: str, module: Module) -> str:
    """A private name belongs to its module, any other to the package."""
    return f"{module.name}:{name}" if _is_private(name) else name


def uses_of(modules: Iterable[Module]) -> Counter[str]:
    """How often each name is used, imports apart. Methods that a library calls are used nowhere."""
    used: Counter[str] = Counter()
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Name):
                used[scoped(node.id, module)] += 1
            elif isinstance(node, ast.Attribute):
                used[scoped(node.attr, module)] += 1
    return used


def definitions(modules: Iterable[Module], *kinds: type[ast.stmt]) -> dict[str, list[tuple[Module, ast.stmt]]]:
    """Functions or classes by name, methods and what stands in functions too."""
    found: dict[str, list[tuple[Module, ast.stmt]]] = defaultdict(list)
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, kinds):
                found[node.name].append((module, node))
    return found


def body_lines(node: ast.AST) -> int:
    """Lines of a function or class below its head, without the docstring."""
    body = node.body
    rest = body[1:] if _is_text(body[0]) else body
    return rest[-1].end_lineno - rest[0].lineno + 1 if rest else 0


def _is_text(node: ast.stmt) -> bool:
    """A docstring, of a module, function, class or field."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def one_caller(modules: list[Module], *kinds: type[ast.stmt]) -> list[tuple[Module, ast.stmt]]:
    """Functions or classes whose name is defined once and used once."""
    used, by_scope = uses_of(modules), defaultdict(list)
    for name, where in definitions(modules, *kinds).items():
        for module, node in where:
            by_scope[scoped(name, module)].append((module, node))
    return [where[0] for name, where in by_scope.items() if len(where) == 1 and used[name] == 1]


# Names of tasks and heads


def names_of_tasks_and_heads(modules: Iterable[Module]) -> dict[str, str]:
    """Each name with the file that is its own; heads that no task is named after have none."""
    own = {}
    for module in modules:
        kind, _, file = module.path.rpartition("/")
        if kind == "tasks" and file not in ("__init__.py", "contract.py"):
            own[file.removesuffix(".py")] = module.path
    for module in modules:
        for node in module.tree.body if module.path == "models/heads.py" else ():
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "Head":
                for text in _texts(node.value):
                    own.setdefault(text, "")
    return own


def literals_of_names(modules: list[Module]) -> dict[str, Places]:
    """By room, and by what stands apart: `path:line name` of every literal that is the name of a task or head."""
    own = names_of_tasks_and_heads(modules)
    found: dict[str, Places] = {"rooms": defaultdict(list), "apart": defaultdict(list)}
    for module in modules:
        kind = _kind(module.path, NAMED_APART)
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            if own.get(node.value, module.path) != module.path:
                place = f"{module.path}:{node.lineno} {node.value}"
                found["apart" if kind else "rooms"][kind or module.room].append(place)
    return found


def _kind(path: str, kinds: Mapping[str, tuple[str, ...]]) -> str:
    return next((kind for kind, starts in kinds.items() if path.startswith(starts)), "")


def _texts(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


# Settings and the places that give advice on them


def settings_of(modules: Iterable[Module]) -> list[str]:
    """Every setting as `table.name`, from the class `Config` and the classes that its fields name."""
    classes = {
        node.name: node
        for module in modules
        if module.room == "config"
        for node in module.tree.body
        if isinstance(node, ast.ClassDef)
    }

    def fields(name: str, above: str) -> Iterator[str]:
        for node in classes[name].body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                kind, key = ast.unparse(node.annotation), f"{above}{node.target.id}"
                if kind in classes:
                    yield from fields(kind, f"{key}.")
                elif not kind.startswith("ClassVar"):
                    yield key

    return list(fields("Config", "")) if "Config" in classes else []


def advice_on_settings(modules: list[Module]) -> dict[str, Places]:
    """By setting and kind of advice: the files that name it, as a literal, in a sentence, or by a constant's name."""
    settings = [key for key in settings_of(modules) if "." in key]
    either = "|".join(map(re.escape, sorted(settings, key=len, reverse=True)))
    pattern = re.compile(rf"(?<![\w.])({either})(?![\w])(?!\.\w)")
    constants = {module.name: _constants(module) for module in modules}
    found: dict[str, Places] = {key: defaultdict(list) for key in settings}
    for module in modules:
        if kind := _kind(module.path, ADVICE):
            for key in _settings_in(module, pattern, constants):
                found[key][kind].append(module.path)
    return {key: dict(places) for key, places in found.items() if places}


def rules_by_setting(modules: list[Module]) -> dict[str, list[str]]:
    """By setting: the classes of `advice/rules/` that change it, as the field `settings` of each says."""
    constants = {module.name: _constants(module) for module in modules}
    found: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        for rule in module.tree.body if module.path.startswith("advice/rules/") else ():
            for node in rule.body if isinstance(rule, ast.ClassDef) else ():
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "settings":
                    for one in node.value.elts if isinstance(node.value, ast.Tuple) else ():
                        found[_constant(one, module.name, constants)].append(rule.name)
    return dict(found)


def _settings_in(module: Module, pattern: re.Pattern[str], constants: Mapping[str, dict[str, ast.expr]]) -> set[str]:
    texts = {id(node.value) for node in ast.walk(module.tree) if isinstance(node, ast.stmt) and _is_text(node)}
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            found.update(pattern.findall(node.value))
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            found.update(pattern.findall(_constant(node, module.name, constants)))
    return found


def _constants(module: Module) -> dict[str, ast.expr]:
    """What module-level names stand for: literals, other names, and `module.NAME` of what is imported."""
    found: dict[str, ast.expr] = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                found[alias.asname or alias.name] = ast.Attribute(ast.Name(node.module), alias.name, ast.Load())
    for node in module.tree.body:
        if isinstance(node, ast.Assign):
            target = node.targets[0]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                found.update({ast.unparse(name): one for name, one in zip(target.elts, node.value.elts, strict=True)})
            else:
                found[ast.unparse(target)] = node.value
        elif isinstance(node, ast.AnnAssign) and node.value:
            found[ast.unparse(node.target)] = node.value
    return found


def _constant(node: ast.expr, module: str, constants: Mapping[str, dict[str, ast.expr]], deep: int = 5) -> str:
    """The text that a name stands for, through imports; empty where it is none."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if deep == 0 or not isinstance(node, ast.Name | ast.Attribute):
        return ""
    known = constants.get(module, {})
    if isinstance(node, ast.Name):
        return _constant(known[node.id], module, constants, deep - 1) if node.id in known else ""
    owner = ast.unparse(node.value)
    if owner not in constants and isinstance(of := known.get(owner), ast.Attribute):
        owner = ast.unparse(of)
    target = constants.get(owner, {}).get(node.attr)
    return _constant(target, owner, constants, deep - 1) if target else ""


# Child processes


def child_processes(modules: Iterable[Module]) -> list[str]:
    """What runs as a process of its own: modules and pools; with their purpose, which is the first sentence of the
    module."""
    found = []
    for module in modules:
        tops = module.tree.body
        name = module.name
        if module.path == "__main__.py" or any(
            isinstance(top, ast.If) and "__main__" in ast.unparse(top) for top in tops
        ):
            how = f"python -m {name.removesuffix('.__main__')}"
        elif re.search(r"\b(get_context|ProcessPoolExecutor)\(", module.text):
            how = f"a pool of {name}"
        else:
            continue
        purpose = " ".join((ast.get_docstring(module.tree) or "").split()).partition(". ")[0].rstrip(".")
        found.append(f"{how}: {purpose.removeprefix(f'`{how}`: ')}")
    return found


def questions(modules: Iterable[Module]) -> list[str]:
    """What the one entry for questions answers: the functions that a table names as `package.module:function`."""
    function = re.compile(rf"{PACKAGE}\.[\w.]+:\w+")
    return sorted({text for module in modules for text in _texts(module.tree) if function.fullmatch(text)})


# Private names of libraries


def private_names(modules: list[Module]) -> dict[str, Places]:
    """By library (Textual, torch, others): private names that the package uses or overrides, with their places."""
    found: dict[str, Places] = {"Textual": defaultdict(list), "torch": defaultdict(list), "others": defaultdict(list)}
    ours = _defined_names(modules)
    unclear: Places = defaultdict(list)
    for module in modules:
        aliases = dict(_aliases(module))
        for library in ("Textual", "torch"):
            for one in imports_of(module.text, module.path):
                if one.name.startswith(f"{library.lower()}.") and (name := _up_to_private(one.name)):
                    found[library][name].append(f"{module.path}:{one.line}")
        for node, name in _private_uses(module):
            place = f"{module.path}:{node.lineno}"
            dotted = ast.unparse(node)
            root = aliases.get(dotted.partition(".")[0], "")
            full = f"{root}.{dotted.partition('.')[2]}" if root else dotted
            library = {"textual": "Textual", "torch": "torch"}.get(full.partition(".")[0], "")
            if library and _up_to_private(full):
                found[library][_up_to_private(full)].append(place)
            elif root.partition(".")[0] not in sys.stdlib_module_names and name not in ours:
                if "textual" in {alias.partition(".")[0] for alias in aliases.values()}:
                    found["Textual"][name].append(place)
                else:
                    unclear[name].append(place)
    for name, place in _overridden(modules):
        found["Textual"][name].append(place)
    of_torch = _names_in_sources("torch", unclear)
    for name, places in unclear.items():
        found["torch" if name in of_torch else "others"][name] += places
    return {library: {name: sorted(set(places)) for name, places in names.items()} for library, names in found.items()}


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name.strip("_") != ""


def _up_to_private(dotted: str) -> str:
    """`torch._dynamo` of `torch._dynamo.config`; empty where nothing is private."""
    parts = dotted.split(".")
    return next((".".join(parts[: n + 1]) for n, part in enumerate(parts) if _is_private(part)), "")


def _private_uses(module: Module) -> Iterator[tuple[ast.expr, str]]:
    """Attributes, and names that `getattr` and its like are given. `_replace` of a named tuple is no private one."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and node.attr not in ("_replace", "_asdict"):
            yield node, node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
            name = node.args[1] if len(node.args) > 1 else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str) and _is_private(name.value):
                yield node, name.value


def _aliases(module: Module) -> Iterator[tuple[str, str]]:
    """What each name that is imported stands for."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (first, first)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _defined_names(modules: Iterable[Module]) -> set[str]:
    """Every name that the package itself defines or assigns."""
    found: set[str] = set()
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            else:
                found.add(_assigned(node))
    return found


def _overridden(modules: Iterable[Module]) -> Iterator[tuple[str, str]]:
    """Private names that a subclass of Textual's defines or uses, and that one of its bases there defines."""
    classes, bases = {}, {}
    for module in modules:
        bases.update({name: full for name, full in _aliases(module) if full.startswith("textual.")})
        classes.update({node.name: (module, node) for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)})

    def of_textual(name: str, seen: frozenset[str] = frozenset()) -> Iterator[str]:
        if name in classes and name not in seen:
            for base in classes[name][1].bases:
                yield from of_textual(re.split(r"[\[(]", ast.unparse(base))[0], seen | {name})
        elif name in bases:
            yield bases[name]

    for name, (module, node) in classes.items():
        taken = {private for base in set(of_textual(name)) for private in _private_of_class(base)}
        for one in ast.walk(node):
            if (private := one.attr if _is_of_self(one) else _assigned(one)) in taken:
                yield private, f"{module.path}:{one.lineno}"


@cache
def _private_of_class(full: str) -> frozenset[str]:
    """Methods and attributes of a class of the installed Textual; none of what is no class."""
    module, _, name = full.rpartition(".")
    kind = getattr(import_module(module), name, None)
    found: set[str] = set()
    for one in kind.__mro__ if isinstance(kind, type) else ():
        if one.__module__.startswith("textual."):
            found.update(vars(one), re.findall(r"self\.(\w+)(?:: [^=\n]+)? = ", inspect.getsource(one)))
    return frozenset(filter(_is_private, found))


def _assigned(node: ast.AST) -> str:
    """The method, or the attribute of `self`, that this makes; empty where it makes none."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name
    return node.attr if _is_of_self(node) and isinstance(node.ctx, ast.Store) else ""


def _is_of_self(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _names_in_sources(library: str, names: Iterable[str]) -> set[str]:
    """Which of the names stand in the sources of an installed library; it is not imported."""
    package, missing, found = PathFinder.find_spec(library), set(names), set()
    folder = Path((package.submodule_search_locations or [""])[0]) if package else Path()
    for path in folder.rglob("*.py*") if package and missing else ():
        if path.suffix in (".py", ".pyi"):
            data = path.read_bytes()
            here = {name for name in missing if name.encode() in data and re.search(rb"\b%b\b" % name.encode(), data)}
            found, missing = found | here, missing - here
    return found


# Seconds of tests


def seconds_of_tests(log: Path) -> dict[str, float]:
    """Seconds of each test file, from the durations that pytest printed or from a JUnit XML."""
    text, seconds = log.read_text("utf-8", errors="replace"), defaultdict(float)
    if text.lstrip().startswith("<"):
        for case in ElementTree.fromstring(text).iter("testcase"):
            seconds[_file_of(case)] += float(case.get("time") or 0)
    else:
        for time, file in _TEST_TIME.findall(text):
            seconds[file] += float(time)
    if not seconds:
        sys.exit(f"{log}: no durations; run pytest with --durations=0 --durations-min=0, or with --junit-xml=FILE")
    return dict(seconds)


def _file_of(case: ElementTree.Element) -> str:
    """`tests/ui/test_app.py` of `tests.ui.test_app.TestClass`."""
    if file := case.get("file"):
        return file
    parts: list[str] = []
    for part in (case.get("classname") or "").split("."):
        parts.append(part)
        if part.startswith("test_"):
            break
    return "/".join(parts) + ".py"


def _room_of_tests(file: str) -> str:
    parts = Path(file).parts[1:]
    return parts[0] if len(parts) > 1 else "(top)"


# The table


def structure_of(root: Path, durations: Path | None = None) -> Structure:
    """Everything that is counted of one checkout."""
    modules = read_modules(root)
    found = Structure()
    _count_rooms(found, root, modules)
    _count_definitions(found, modules)
    _count_names(found, modules)
    _count_advice(found, modules)
    children = child_processes(modules)
    found.rows["entries for child processes"] = str(len(children))
    found.details["child processes, and what they answer"] = children
    found.details["questions, and what answers them"] = questions(modules)
    found.rows["  questions of one entry"] = str(len(questions(modules)))
    for library, names in private_names(modules).items():
        found.rows[f"private names of {library}"] = f"{len(names)} in {sum(map(len, names.values()))} places"
        found.details[f"private names of {library}"] = [f"{name}: {', '.join(names[name])}" for name in sorted(names)]
    if durations:
        _count_seconds(found, seconds_of_tests(durations))
    return found


def _count_rooms(found: Structure, root: Path, modules: list[Module]) -> None:
    rooms: dict[str, list[int]] = defaultdict(list)
    for module in modules:
        rooms[module.room].append(len(module.text.splitlines()))
    lines = sum(map(sum, rooms.values()))
    found.rows.update({f"{room}/": f"{sum(sizes):,} in {len(sizes)}" for room, sizes in sorted(rooms.items())})
    found.rows["all lines in files"] = f"{lines:,} in {len(modules)}"
    tests = [len(path.read_text("utf-8").splitlines()) for path in (root / "tests").rglob("*.py")]
    found.rows["lines of tests in files"] = f"{sum(tests):,} in {len(tests)}"
    imports = import_lines(modules)
    found.rows["import lines"] = f"{imports:,}, {imports / lines:.1%}"
    graph = graph_of(modules_of(root), root)
    joined = circles(graph)
    found.rows["circles"] = f"{len(joined)}" + (f" (largest of {max(map(len, joined))})" if joined else "")
    importers = Counter(target for targets in graph.values() for target in targets)
    found.rows["modules with one importer"] = str(sum(count == 1 for count in importers.values()))
    top = {one.name.partition(".")[0] for module in modules for one in imports_of(module.text, module.path)}
    third = sorted(top - {PACKAGE, ""} - set(sys.stdlib_module_names))
    found.rows["third-party packages"] = f"{len(third)}"
    found.details["third-party packages"] = third


def _count_definitions(found: Structure, modules: list[Module]) -> None:
    functions = definitions(modules, *_FUNCTIONS)
    found.rows["functions"] = f"{sum(map(len, functions.values())):,}"
    found.rows["functions with one caller"] = f"{len(one_caller(modules, *_FUNCTIONS)):,}"
    for what, kinds in (("functions", _FUNCTIONS), ("classes", (ast.ClassDef,))):
        short = [(module, node) for module, node in one_caller(modules, *kinds) if body_lines(node) < FEW_LINES]
        name = f"{what}, 1 caller, <{FEW_LINES} lines"
        found.rows[name] = f"{len(short):,}"
        found.details[name] = [f"{module.path}:{node.lineno} {node.name}" for module, node in short]
    classes = definitions(modules, ast.ClassDef)
    several = {name: where for name, where in sorted(classes.items()) if len(where) > 1}
    found.rows["classes"] = f"{sum(map(len, classes.values())):,}"
    found.rows["names of several classes"] = f"{len(several)}, {sum(map(len, several.values()))} classes"
    found.details["names of several classes"] = [
        f"{name}: {', '.join(module.path for module, _ in where)}" for name, where in several.items()
    ]


def _count_names(found: Structure, modules: list[Module]) -> None:
    literals = literals_of_names(modules)
    rooms, apart = literals["rooms"], literals["apart"]
    found.rows["names of tasks, heads"] = f"{sum(map(len, rooms.values()))}"
    found.rows.update({f"  in {room}/": str(len(rooms[room])) for room in sorted(rooms)})
    found.rows.update({f"  apart: {kind}": str(len(apart.get(kind, ()))) for kind in NAMED_APART})
    for room, places in sorted(rooms.items()):
        found.details[f"names of tasks and heads in {room}/"] = places


def _count_advice(found: Structure, modules: list[Module]) -> None:
    advice = advice_on_settings(modules)
    places = {key: sum(map(len, kinds.values())) for key, kinds in advice.items()}
    found.rows["settings"] = str(len(settings_of(modules)))
    found.rows["settings with advice"] = str(len(advice))
    found.rows["  places of advice"] = str(sum(places.values()))
    for kind in ADVICE:
        found.rows[f"  in {kind}"] = str(sum(len(kinds.get(kind, ())) for kinds in advice.values()))
    found.rows["  settings in 3 kinds or more"] = str(sum(len(kinds) >= 3 for kinds in advice.values()))
    rules = rules_by_setting(modules)
    several = sum(len(names) > 1 for names in rules.values())
    found.rows["settings that rules change"] = f"{len(rules)}, {several} by several"
    found.details["settings that several rules change"] = [
        f"{key}: {', '.join(names)}" for key, names in sorted(rules.items()) if len(names) > 1
    ]
    most = max(places, key=places.__getitem__, default="")
    found.rows["  most places"] = f"{places.get(most, 0)} {most.rpartition('.')[2][:16]}"
    found.details["places of advice by setting"] = [
        f"{key} ({places[key]}): " + "; ".join(f"{kind}: {', '.join(kinds[kind])}" for kind in ADVICE if kind in kinds)
        for key, kinds in sorted(advice.items(), key=lambda item: (-places[item[0]], item[0]))
    ]


def _count_seconds(found: Structure, seconds: Mapping[str, float]) -> None:
    rooms: Counter[str] = Counter()
    for file, took in seconds.items():
        rooms[_room_of_tests(file)] += took
    found.rows["seconds of tests"] = f"{sum(seconds.values()):,.0f} in {len(seconds)}"
    found.rows.update({f"  in tests/{room}/": f"{took:,.0f}" for room, took in rooms.most_common()})
    dearest = sorted(seconds, key=seconds.__getitem__, reverse=True)[:_DEAREST]
    found.details[f"the dearest {_DEAREST} test files"] = [f"{seconds[file]:8.1f} s  {file}" for file in dearest]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--details", action="store_true", help="list below the table what was counted")
    parser.add_argument("--durations", action="append", default=[], type=Path, metavar="LOG")
    options = parser.parse_args(arguments)
    folders = options.folders or [Path(__file__).resolve().parents[2]]
    found = [structure_of(folder, log) for folder, log in zip_longest(folders, options.durations[: len(folders)])]
    for name in dict.fromkeys(name for one in found for name in one.rows):
        print(f"{name:32}" + "".join(f"{one.rows.get(name, '-'):>24}" for one in found))
    for folder, one in zip(folders, found, strict=True):
        for heading, lines in one.details.items():
            if options.details or (heading.startswith("the dearest") and options.durations):
                print(f"\n{heading} ({folder})", *(f"  {line}" for line in lines), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
