"""The instrument that counts the structure of a checkout, on a made-up one."""

from __future__ import annotations

from pathlib import Path

import pytest

import tui_trainer
from tests.benchmarks.structure import Structure, main, private_names, read_modules, seconds_of_tests, structure_of

SOURCES = {
    "__main__.py": '"""`python -m tui_trainer`: the program. And more."""\nfrom tui_trainer import app\n',
    "app.py": """
from tui_trainer.planning import (
    remedies,
)
def start():
    return _short() + _long()
def _short():
    "Doc."
    return remedies.LENGTH
def _long():
    one = 1
    two = 2
    three = 3
    return one + two + three
class Row:
    kind = "chat"
""",
    "tasks/chat.py": 'NAME = "chat"\nclass Row:\n    pass\n',
    "tasks/contract.py": "",
    "models/heads.py": 'from typing import Literal\nHead = Literal["chat", "seq2seq_lm"]\n',
    "importing/axolotl.py": 'KIND = "chat"\n',
    "config/sections.py": """
class DataSection:
    max_length: int = 1
    packing: bool = False
class Config:
    profile: str = ""
    data: DataSection = DataSection()
""",
    "planning/remedies.py": 'LENGTH = "data.max_length"\n',
    "planning/plan.py": 'PROBLEM = "raise data.max_length_of or lower data.max_length"\n',
    "checklist/length.py": '"""Of data.packing."""\nfrom tui_trainer.planning import remedies\nFIX = remedies.LENGTH\n',
    "advice/rules/length.py": """
from tui_trainer.planning.remedies import LENGTH
class Longer(Rule):
    settings = (LENGTH, "data.packing")
class Shorter(Rule):
    settings = (LENGTH,)
""",
    "worker/__main__.py": '"""`python -m tui_trainer.worker`: answers. Slow."""\nif __name__ == "__main__": ...\n',
    "worker/questions.py": 'ONE = {"count": "tui_trainer.models.counting:answer"}\nOTHER = "tui_trainer.worker"\n',
    "training/step.py": """
import os
import torch
def run(model):
    torch._dynamo.reset()
    model._compiled_call_impl()
    os._exit(0)
    return getattr(model, "_of_nobody_at_all", None)
""",
    "ui/app.py": """
from textual.app import App
class Ours(App):
    def _handle_exception(self, error): ...
    def _of_our_own(self): return self._driver
""",
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkout")
    for name, text in SOURCES.items():
        path = root / "tui_trainer" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture(scope="module")
def found(checkout: Path) -> Structure:
    return structure_of(checkout)


def test_import_lines_are_counted_with_their_brackets(found):
    lines = sum(len(text.splitlines()) for text in SOURCES.values())
    assert found.rows["import lines"] == f"10, {10 / lines:.1%}"


def test_short_functions_with_one_caller_and_classes_of_one_name_are_listed(found):
    assert found.details["functions, 1 caller, <4 lines"] == ["app.py:7 _short"]
    assert found.rows["functions with one caller"] == "2"
    assert found.details["names of several classes"] == ["Row: app.py, tasks/chat.py"]


def test_names_of_tasks_are_counted_outside_of_their_own_file_and_apart_where_they_may_stand(found):
    assert found.rows["names of tasks, heads"] == "1"
    assert found.details["names of tasks and heads in (top)/"] == ["app.py:16 chat"]
    assert (found.rows["  apart: importers"], found.rows["  apart: heads"]) == ("1", "2")


def test_advice_on_a_setting_is_found_through_constants_and_in_sentences_and_not_in_docstrings(found):
    assert found.details["places of advice by setting"] == [
        "data.max_length (4): checks: checklist/length.py; remedies: planning/remedies.py; "
        "advice: advice/rules/length.py; plan: planning/plan.py",
        "data.packing (1): advice: advice/rules/length.py",
    ]
    assert found.rows["settings"] == "3" and found.rows["settings with advice"] == "2"


def test_settings_are_listed_with_the_rules_that_change_them(found):
    assert found.rows["settings that rules change"] == "2, 1 by several"
    assert found.details["settings that several rules change"] == ["data.max_length: Longer, Shorter"]


def test_children_are_named_with_what_they_answer(found):
    assert found.details["child processes, and what they answer"] == [
        "python -m tui_trainer: the program",
        "python -m tui_trainer.worker: answers",
    ]
    assert found.details["questions, and what answers them"] == ["tui_trainer.models.counting:answer"]


def test_private_names_of_libraries_are_told_from_our_own(found):
    assert found.details["private names of Textual"] == ["_driver: ui/app.py:5", "_handle_exception: ui/app.py:4"]
    assert found.details["private names of torch"] == [
        "_compiled_call_impl: training/step.py:6",
        "torch._dynamo: training/step.py:5",
    ]
    assert found.details["private names of others"] == ["_of_nobody_at_all: training/step.py:8"]


LOG = """
============================= slowest durations ==============================
12.50s call     tests/ui/test_app.py::test_it[a b]
1.25s setup    tests/ui/test_app.py::test_it[a b]
0.25s teardown tests/test_cli.py::test_help
FAILED tests/test_cli.py::test_help - assert 1.0s call
"""
XML = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="tests.ui.test_app" name="test_it[a]" time="13.75" />
<testcase classname="tests.test_cli.TestHelp" name="test_help" time="0.25" />
</testsuite></testsuites>"""


@pytest.mark.parametrize("text", [LOG, XML], ids=["durations", "junit"])
def test_seconds_of_tests_are_summed_by_file(tmp_path, text):
    log = tmp_path / "log"
    log.write_text(text)
    assert seconds_of_tests(log) == {"tests/ui/test_app.py": 13.75, "tests/test_cli.py": 0.25}


def test_two_checkouts_stand_beside_each_other(checkout, tmp_path, capsys):
    (tmp_path / "other" / "tui_trainer").mkdir(parents=True)
    (tmp_path / "other" / "tui_trainer" / "lines.py").write_text("import torch\n")
    (tmp_path / "log").write_text(LOG)
    main([str(checkout), str(tmp_path / "other"), "--durations", str(tmp_path / "log")])
    table, _, dearest = capsys.readouterr().out.partition("\n\n")
    rows = {line[:32].strip(): line[32:].split() for line in table.splitlines()}
    assert rows["entries for child processes"] == ["2", "0"]
    assert rows["in tests/ui/"] == ["14", "-"] and "seconds of tests" in rows
    assert dearest.splitlines()[1].split() == ["13.8", "s", "tests/ui/test_app.py"]


def test_the_screens_use_no_private_name_of_textual():
    everything = read_modules(Path(tui_trainer.__file__).parents[1])
    modules = [module for module in everything if module.path.startswith("ui/")]
    assert sum("textual" in module.text for module in modules) > 10
    assert private_names(modules)["Textual"] == {}
