"""`check` on the command line: lines, JSON, exit codes, and the config with all fixes."""

from __future__ import annotations

import json
import math

import pytest

from tui_trainer.advice.checklist import all_checks, run_checks
from tui_trainer.advice.gather import gather
from tui_trainer.advice.measured_gains import Gain, Measurable, keep_gain
from tui_trainer.cli import main
from tui_trainer.config.load import Request
from tui_trainer.errors import InputError
from tui_trainer.launching.open_run import load_config
from tui_trainer.lines.checklist import print_checks

BAD = ("training.weight_decay=0", "training.max_grad_norm=0")


def test_lines_tell_status_evidence_and_the_way_out(capsys):
    assert print_checks(load_config(Request(assignments=BAD)), as_json=False) == 0
    printed = capsys.readouterr().out
    assert "warn   Weight decay" in printed and "weight_decay 0: the weights are not regularised" in printed
    assert "fix: training.weight_decay = 0.0 -> 0.01" in printed
    assert "gain: not measured yet" in printed
    assert "tui-trainer check --fix OUT.toml" in printed
    assert all(check.title in printed for check in all_checks())


def test_json_holds_everything(capsys):
    assert print_checks(load_config(Request(assignments=BAD)), as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["worst"] == "warn" and sum(found["counts"].values()) == len(found["findings"]) == len(all_checks())
    clipping = next(finding for finding in found["findings"] if finding["check"] == "clipping")
    assert clipping["fix"] == {"training.max_grad_norm": {"old": 0.0, "new": 1.0}}
    assert clipping["measured_gain"] is None and clipping["published_gain"] == ""


def test_what_fails_is_exit_code_1(tmp_path, capsys):
    loaded = load_config(Request(shortcuts={"data.path": str(tmp_path / "nothing\x1b[2J.txt")}))
    assert print_checks(loaded, as_json=False) == 1
    printed = capsys.readouterr().out
    assert "fail   The run can be planned" in printed and "\x1b" not in printed
    assert print_checks(loaded, as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["counts"]["fail"] == 1


def test_fixes_are_written_as_a_config_that_loads(tmp_path, capsys):
    out = tmp_path / "fixed.toml"
    assert print_checks(load_config(Request(assignments=BAD)), as_json=False, fix=out) == 0
    assert "set    training.weight_decay = 0.01" in capsys.readouterr().out
    again = load_config(Request(config_file=out))
    assert again.config.training.weight_decay == 0.01 and again.config.training.max_grad_norm == 1.0
    assert again.recipe is not None and again.recipe.name == "quickstart"
    assert print_checks(again, as_json=True) == 0
    # How fast this machine is today decides what its interruptions cost.
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [finding["check"] for finding in found if finding["fix"] and finding["check"] != "cadence"] == []


def test_an_existing_file_is_not_overwritten(tmp_path):
    out = tmp_path / "mine.toml"
    out.write_text("# mine")
    with pytest.raises(InputError, match="not overwritten"):
        print_checks(load_config(Request()), as_json=False, fix=out)
    assert out.read_text() == "# mine"


def test_a_file_that_cannot_be_written_is_a_mistake_in_the_input(tmp_path):
    for path, words in ((tmp_path / "no" / "such.toml", "cannot be written"), (tmp_path / "fixed", "end in .toml")):
        with pytest.raises(InputError, match=words):
            print_checks(load_config(Request()), as_json=False, fix=path)


def test_a_missing_card_is_wrong_input_and_no_card_is_the_cpu(capsys, subtests):
    for command in ("check", "preview", "plan"):
        with subtests.test(command):
            assert main([command, "--gpu", "7"]) == 2
            assert "7" in capsys.readouterr().err
    assert main(["check", "--gpu", "none", "--set", "training.max_steps=3"]) in (0, 1)


def test_a_measured_loss_that_is_no_number_is_valid_json(capsys):
    context = gather(load_config(Request(assignments=BAD)))
    speed = next(one for one in run_checks(context) if one.rule.is_for_speed and one.verdict.opposite_patch)
    gain = Gain(at="2026-11-20", ratios=(1.5, 1.6), losses=(math.nan, math.inf))
    keep_gain(Measurable.of(context.plan), speed.verdict.opposite_patch, context.plan.shape_key, gain)
    print_checks(load_config(Request(assignments=BAD)), as_json=True)
    found = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    (measured,) = [one["measured"] for one in found["findings"] if one["check"] == speed.name]
    assert measured["losses"] == ["NaN", "Infinity"]
