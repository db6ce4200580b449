"""The field's own words: what code, settings, output and README must not say, and what they say instead."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import tui_trainer

PACKAGE = Path(tui_trainer.__file__).resolve().parent
ROOT = PACKAGE.parent

# Parts of the names of modules, classes, functions, parameters and attributes.
NAMES = {
    "talk": "conversation",
    "talks": "conversations",
    "regime": "training_setup",
    "desk": "control_handler",
    "learner": "what it is made of",
    "updater": "optimizer",
    "optimiser": "optimizer",
    "optimisers": "optimizers",
    "anatomy": "architecture spec",
    "stacks": "encoder-decoder",
    "wish": "requested",
}
# Whole names of classes and modules.
WHOLE_NAMES = {"ahead": "prefetcher"}
# In any text: code with its strings and docstrings, profiles, README.
PHRASES = {
    r"\btalks?\b": "conversation",
    r"optimis(e|ers?)\b": "optimizer",
    r"\bway out\b": "fallback, fix",
    r"\b(what )?moves (its|the) weights\b": "optimizer",
    r"\bpassing results?\b": "temporaries",
    r"\bwidest[ _]rows?\b": "longest row",
    r"\bfilling[ _]id\b": "pad_token_id",
    r"\btwo stacks\b": "encoder-decoder",
    r"\bmatrix products?\b": "matmul",
    r"\bproducts (are|in|of fp32)\b": "matmuls",
    r"\bbehind the point\b": "TF32",
    r"\bby lot\b": "randomly",
    r"\b[Nn]obody is at it\b": "no process owns it",
    r"\brandom\.safetensors\b": "rng_state.safetensors",
    r"\bfrom (random (values|numbers)|nothing)\b": "from scratch",
    r"\bsmall matrices beside\b": "LoRA adapters",
    r"\b(weights|parameters|of them) move\b": "trainable",
}

# All at once, as most texts have none of them: those that begin a word, and the others.
_BEGINNINGS = "|".join(one.removeprefix(r"\b") for one in PHRASES if one.startswith(r"\b"))
ANY_PHRASE = re.compile("|".join([rf"\b({_BEGINNINGS})", *(one for one in PHRASES if not one.startswith(r"\b"))]))


def names_in(nodes: list[ast.AST]) -> set[str]:
    """All names that a module gives: `BatchCut.of_two_rows` gives batch, cut, of, two, rows."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
    return {part.lower() for name in names for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)}


def other_words(text: str, name: str) -> list[str]:
    """What one file says that the field calls otherwise."""
    said = PHRASES.items() if ANY_PHRASE.search(text) else ()
    found = [f"{match[0]!r}, say {word}" for pattern, word in said for match in re.finditer(pattern, text)]
    if name.endswith(".py"):
        nodes = list(ast.walk(ast.parse(text)))
        names = names_in(nodes) | set(Path(name).stem.split("_"))
        found += [f"{part}, say {NAMES[part]}" for part in sorted(names & NAMES.keys())]
        classes = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
        whole = {one.lower() for one in (*classes, Path(name).stem)}
        found += [f"{one}, say {WHOLE_NAMES[one]}" for one in sorted(whole & WHOLE_NAMES.keys())]
    return [f"{name}: {one}" for one in found]


def swept() -> dict[str, str]:
    paths = [path for path in PACKAGE.rglob("*.py") if "_profiles" not in path.parts]
    paths += [
        ROOT / "README.md",
        *sorted((ROOT / "profiles").rglob("*.md")),
        *sorted((ROOT / "profiles").rglob("*.toml")),
    ]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def test_the_words_are_those_of_the_field():
    texts = swept()
    assert len(texts) > 300 and {"README.md", "profiles/README.md", "tui_trainer/training/run.py"} <= texts.keys()
    assert [one for name, text in texts.items() for one in other_words(text, name)] == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("the optimiser's state", "README.md"),
        ("all 3 parameters move", "README.md"),
        ("# a talk\n", "a.py"),
        ("class ModelAnatomy: ...", "a.py"),
        ("def f(wish): ...", "a.py"),
        ("", "regime.py"),
        ("", "ahead.py"),
        ("class Ahead: ...", "a.py"),
        ("x = self._learner", "a.py"),
    ],
)
def test_another_word_is_found(text, name):
    assert other_words(text, name)


def test_words_that_only_begin_alike_are_left_alone():
    assert other_words("def stalk(): ...\n# products of the house", "a.py") == []
