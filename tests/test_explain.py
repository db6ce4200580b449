"""`explain` says what every word of the program means, in that word's own declaration."""

from __future__ import annotations

import pytest

from tui_trainer import errors
from tui_trainer.advice.checklist import all_checks
from tui_trainer.advice.examine import all_symptoms
from tui_trainer.cli import main
from tui_trainer.errors import EXIT_CODES


def explained(capsys, *words: str) -> str:
    assert main(["explain", *words]) == 0
    return capsys.readouterr().out


def test_every_check_is_explained_by_its_name_and_by_its_title(capsys):
    assert len(all_checks()) > 40
    for check in all_checks():
        by_name = explained(capsys, check.name)
        assert f"{check.name} (a check: {check.title})\n  {check.why}\n" in by_name
        assert all(key in by_name for key in check.settings)
        assert f"{check.name} (a check" in explained(capsys, *check.title.split())


def test_every_finding_of_the_doctor_is_explained_by_its_name_and_by_its_title(capsys):
    assert len(all_symptoms()) > 20
    for one in all_symptoms():
        assert f"{one.name} (a finding of the doctor: {one.title})" in explained(capsys, one.name)
        assert f"{one.name} (a finding of the doctor" in explained(capsys, one.title.upper())


def test_every_command_is_explained_by_its_help(capsys):
    names = explained(capsys, "commands").split("\n")[:-1]
    assert len(names) > 30 and "bench train" in names
    for name in names:
        shown = explained(capsys, *name.split())
        assert main([*name.split(), "--help"]) == 0
        helped = capsys.readouterr().out
        assert f"{name} (a command)\n" in shown
        assert helped.split("Options:")[0].split() == shown.split("(a command)")[1].split("Options:")[0].split()


def test_every_exit_code_is_explained(capsys):
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_") and isinstance(value, int)}
    assert set(EXIT_CODES) == codes
    for code, meaning in EXIT_CODES.items():
        assert explained(capsys, str(code)) == explained(capsys, "exit", "code", str(code))
        assert meaning in explained(capsys, str(code))
    assert "SIGKILL" in explained(capsys, "137") and "SIGTERM" in explained(capsys, "143")


def test_a_word_of_several_kinds_is_explained_as_each(capsys):
    found = explained(capsys, "learning_rate", "--set", "training.learning_rate=0.25")
    assert found.index("now:     0.25  (from --set)") < found.index("learning_rate (a check:")


def test_several_words_are_explained_each_where_they_are_none_together(capsys):
    found = explained(capsys, "training.seed", "padding", "3")
    assert found.startswith("training.seed\n") and "padding (a check" in found and "3 (an exit code)" in found
    assert main(["explain", "training.seed", "paddin"]) == 2
    assert "'training.seed paddin'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("learning_rat", "did you mean training.learning_rate, the check learning_rate or"),
        ("trian", "the command train"),
        ("waiting_for_dat", "the finding waiting_for_data"),
        ("micro-batch keep the core busy", "the check micro-batch keeps the cores busy"),
        ("99", "lists all settings"),
        ("\x1b[2Jzz", "lists all settings"),
    ],
)
def test_an_unknown_word_is_answered_with_near_ones_of_every_kind(capsys, word, meant):
    assert main(["explain", word]) == 2
    said = capsys.readouterr().err
    assert meant in said and "\x1b" not in said


@pytest.mark.parametrize(
    ("kind", "names"),
    [("checks", [one.name for one in all_checks()]), ("findings", [one.name for one in all_symptoms()])],
)
def test_all_of_a_kind_are_listed(capsys, kind, names):
    assert [line.split(":")[0] for line in explained(capsys, kind).splitlines()] == names
