"""`tui-trainer explain`: checks, findings, commands, settings and exit codes."""

from __future__ import annotations

from tui_trainer import errors
from tui_trainer.advice.checklist import all_checks
from tui_trainer.advice.examine import all_symptoms
from tui_trainer.cli import main
from tui_trainer.errors import EXIT_CODES


def explained(capsys, *words: str) -> str:
    assert main(["explain", *words]) == 0
    return capsys.readouterr().out


def test_check_and_finding_are_explained_by_name_and_by_title(capsys):
    check, finding = all_checks()[0], all_symptoms()[0]
    assert_check_is_explained(check, capsys)
    assert_finding_is_explained(finding, capsys)
    assert f"{check.name} (a check" in explained(capsys, *check.title.split())
    assert f"{finding.name} (a finding of the doctor" in explained(capsys, finding.title.upper())


def assert_check_is_explained(check, capsys):
    explanation = explained(capsys, check.name)
    assert f"{check.name} (a check: {check.title})\n  {check.why}\n" in explanation
    assert all(key in explanation for key in check.settings)


def assert_finding_is_explained(finding, capsys):
    assert f"{finding.name} (a finding of the doctor: {finding.title})" in explained(capsys, finding.name)


def test_a_command_is_explained_by_its_help(capsys):
    names = explained(capsys, "commands").split("\n")[:-1]
    assert len(names) > 30
    for name in ("train", "bench train"):
        assert name in names
        explanation = explained(capsys, *name.split())
        assert main([*name.split(), "--help"]) == 0
        help_text = capsys.readouterr().out
        assert f"{name} (a command)\n" in explanation
        assert options_of(help_text) == options_of(explanation.split("(a command)")[1])


def options_of(text: str) -> list[str]:
    return text.split("Options:")[0].split()


def test_every_exit_code_is_explained(capsys):
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_") and isinstance(value, int)}
    assert set(EXIT_CODES) == codes
    for code, meaning in EXIT_CODES.items():
        assert explained(capsys, str(code)) == explained(capsys, "exit", "code", str(code))
        assert meaning in explained(capsys, str(code))
    assert "SIGKILL" in explained(capsys, "137") and "SIGTERM" in explained(capsys, "143")


def test_name_of_a_setting_and_a_check_is_explained_as_both(capsys):
    found = explained(capsys, "learning_rate", "--set", "training.learning_rate=0.25")
    assert found.index("now:     0.25  (from --set)") < found.index("learning_rate (a check:")


def test_several_words_are_explained_one_by_one(capsys):
    found = explained(capsys, "training.seed", "padding", "3")
    assert found.startswith("training.seed\n") and "padding (a check" in found and "3 (an exit code)" in found
    assert main(["explain", "training.seed", "paddin"]) == 2
    assert "'training.seed paddin'" in capsys.readouterr().err


def test_unknown_word_is_refused_with_similar_ones_of_every_kind(capsys, subtests):
    for word, suggestion in (
        ("learning_rat", "did you mean training.learning_rate, the check learning_rate or"),
        ("trian", "the command train"),
        ("waiting_for_dat", "the finding waiting_for_data"),
        ("micro-batch siz", "the check batch_size"),
        ("99", "lists all settings"),
        ("\x1b[2Jzz", "lists all settings"),
    ):
        with subtests.test(ascii(word)):
            assert main(["explain", word]) == 2
            message = capsys.readouterr().err
            assert suggestion in message and "\x1b" not in message


def test_all_checks_and_findings_are_listed(capsys):
    for kind, items in (("checks", all_checks()), ("findings", all_symptoms())):
        assert [line.split(":")[0] for line in explained(capsys, kind).splitlines()] == [one.name for one in items]
