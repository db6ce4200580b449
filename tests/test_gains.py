"""`tui-trainer check --measure`: gains of switches, measured in pairs and kept by settings, shape and versions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.trained_runs import SETTINGS, write_rows
from tui_trainer.advice.checklist import patch_words, run_checks
from tui_trainer.advice.gather import gather
from tui_trainer.advice.measured_gains import Gain, KeptGains, Measurable, keep_gain
from tui_trainer.cli import main
from tui_trainer.config.load import Request
from tui_trainer.errors import InputError
from tui_trainer.launching.open_run import load_config
from tui_trainer.measure import gains, steps
from tui_trainer.measure.micro_batches import question_of
from tui_trainer.measure.sessions import take_steps
from tui_trainer.measure.steps import short_run
from tui_trainer.planning.records import GAIN, Key, keep_record
from tui_trainer.runs.lock import RunLock
from tui_trainer.runs.registry import add_to_index
from tui_trainer.worker.asking import WorkerFailed

HERE = Measurable(device="a CPU", torch="2.15", shape_key="small", settings={"data.packing": False, "data.seed": 1})
PACKED = {"data.packing": "auto"}
MEASURED = Gain(
    at="2026-11-23T10:00:00Z", ratios=(1.7, 1.8, 1.84), steps=24, memory_bytes=(2**30, 2**29), losses=(2.5, 2.5)
)


def other_side() -> Measurable:
    return replace(HERE, settings={**HERE.settings, **PACKED}, shape_key="packed")


def test_kept_gain_is_found_from_both_sides_and_only_for_equal_settings_shape_and_versions():
    keep_gain(HERE, PACKED, "packed", MEASURED)
    assert KeptGains.read(HERE).find(PACKED) == MEASURED
    back = KeptGains.read(other_side()).find({"data.packing": False})
    assert back.ratios == pytest.approx([1 / 1.7, 1 / 1.8, 1 / 1.84]) and back.memory_bytes == (2**29, 2**30)
    others = [
        replace(HERE, shape_key="large"),
        replace(HERE, torch="2.16"),
        replace(HERE, device="another CPU"),
        replace(HERE, settings={**HERE.settings, "data.seed": 2}),
        replace(other_side(), shape_key="small"),
    ]
    assert [KeptGains.read(one).find(PACKED) for one in others] == [None] * 5
    assert KeptGains.read(HERE).find({}) is None and KeptGains.read(HERE).find({"data.packing": True}) is None
    keep_gain(HERE, PACKED, "packed", replace(MEASURED, ratios=(1.0,)))
    assert KeptGains.read(HERE).find(PACKED).ratios == (1.0,)


def test_damaged_record_is_no_gain():
    keep_record(GAIN, Key(device="a CPU"), {"ratios": ["fast"]}, part="-".join(sorted(map(HERE.digest, ({}, PACKED)))))
    assert KeptGains.read(HERE).find(PACKED) is None
    keep_gain(HERE, PACKED, "packed", MEASURED)
    assert KeptGains.read(HERE).find(PACKED) == MEASURED


def test_gain_is_described_with_median_spread_date_and_side_effects():
    assert MEASURED.words() == (
        "1.80 times as fast (measured here 2026-11-23, 3 comparisons, +-4 %); memory 1.0 GiB -> 512.0 MiB"
    )
    other = replace(MEASURED, memory_bytes=(1, 1), ratios=(1.5,), losses=(2.5, 2.25))
    assert other.words("data.packing = false") == (
        "1.50 times as fast as with data.packing = false "
        "(measured here 2026-11-23, 1 comparison, too few to be sure); "
        "held-out loss 2.500 -> 2.250 after 24 steps"
    )


def test_gain_within_the_spread_of_its_pairs_is_no_difference():
    for ratios, is_difference in (
        ((0.9, 1.05, 1.1), False),
        ((1.01, 1.01, 1.015), False),
        ((1.01, 1.1, 1.4), False),
        ((1.05, 1.06, 1.08), True),
        ((0.5, 0.6, 0.55), True),
    ):
        gain = replace(MEASURED, ratios=ratios, memory_bytes=(1, 1))
        assert gain.is_difference == is_difference, ratios
        assert gain.words().startswith("no measurable difference in speed (measured here") != is_difference, ratios


@pytest.mark.full
def test_checks_without_a_measurable_switch_say_so():
    loaded = load_config(Request(profile="char-lm", assignments=("training.weight_decay=0", "training.max_steps=3")))
    found = {one.name: one for one in run_checks(gather(loaded))}
    assert "this check has no effect on step time" in found["steps"].gain_words and found["steps"].fix
    assert found["weight_decay"].gain_words == "not measured yet"
    assert found["plan"].why_not_measured == "this check has no setting to toggle"
    switched = {name for name, one in found.items() if not one.why_not_measured}
    assert {"optimizer", "torch_compile", "attention", "gradient_checkpointing", "data_loading"} <= switched
    no_setting = {name for name, one in found.items() if one.why_not_measured.startswith("this check has no setting")}
    assert no_setting == {name for name, one in found.items() if not one.alternative}


def uneven(place, **settings) -> list[str]:
    """Return the words of a command whose texts are short but for every 16th, so that most of a pass is padding."""
    lengths = [600 if n % 16 == 0 else 8 for n in range(320)]
    texts = [" ".join(f"word{(n * k) % 97}" for k in range(length)) for n, length in enumerate(lengths)]
    data = write_rows(place / "rows.jsonl", [{"text": text} for text in texts])
    settings = {
        **SETTINGS,
        "task.type": "causal_lm",
        "output.runs_dir": place / "runs",
        "data.max_length": 256,
        "data.packing": "false",
        "training.num_train_epochs": 200,
        "training.max_steps": 400,
        **settings,
    }
    return ["--data", str(data), *(part for key, value in settings.items() for part in ("--set", f"{key}={value}"))]


@pytest.fixture
def asked(monkeypatch):
    """Made-up measurements: packed steps are twice as fast and take half of the memory. Returns the questions."""
    turns: list[dict] = []

    def ask(request, gpu, steps, patch, seconds, /, **more):
        turns.append({"steps": steps, "patch": dict(patch), **more})
        speed = 2.0 if patch.get("data.packing") == "auto" else 1.0
        taken = min(steps, 7)  # in its share of the time
        memory_bytes = int(2**30 / speed)
        return {"steps": taken, "tokens_per_second": 100 * speed, "peak_memory_bytes": memory_bytes, "loss": 3.0}

    monkeypatch.setattr(steps, "ask_for_steps", ask)
    return turns


def checked(capsys, *arguments: str, code: int = 0):
    assert main(["check", *arguments, "--json"]) == code
    shown = capsys.readouterr()
    return {one["check"]: one for one in json.loads(shown.out)["findings"]}, shown.err


@pytest.mark.full
def test_check_measures_a_fix_and_shows_its_gain_from_then_on(asked, tmp_path, capsys):
    config = uneven(tmp_path)
    found, printed = checked(capsys, *config, "--measure", "padding")
    assert found["padding"]["measured_gain"] == 2.0 and found["padding"]["measured"]["fix"] == {"data.packing": "auto"}
    assert [turn["patch"] for turn in asked] == [{}, {"data.packing": "auto"}] * 3
    assert [turn["steps"] for turn in asked[1:]] == [7] * 5 and asked[0]["steps"] > 7, "as many as the first has taken"
    assert [turn.get("seconds") for turn in asked] == [50.0, *[None] * 5] and found["padding"]["measured"]["steps"] == 7
    assert "round 2 of 3: current settings" in printed and "padding: 2.00 times as fast (measured here 20" in printed
    fixed = [word.replace("data.packing=false", "data.packing=auto") for word in config]
    found, _ = checked(capsys, *fixed)
    assert found["padding"]["status"] == "pass" and found["padding"]["measured_gain"] == 2.0
    assert found["padding"]["measured"]["compared_with"] == {"data.packing": False} and len(asked) == 6
    elsewhere = ["--set", "output.name=other", "--set", "evaluation.eval_steps=50", "--set", "training.max_steps=300"]
    assert main(["check", *fixed, *elsewhere]) == 0
    assert "gain: 2.00 times as fast as with data.packing = false (measured here" in capsys.readouterr().out
    longer, _ = checked(capsys, *uneven(tmp_path, **{"data.max_length": 128}))
    assert longer["padding"]["measured_gain"] is None, "another shape"


@pytest.mark.full
@pytest.mark.parametrize(("seconds", "steps"), [(0.0, 3), (600.0, 5)])
def test_measurement_ends_after_its_time_and_not_before_its_least_steps(seconds, steps, tmp_path):
    words = uneven(tmp_path)
    request = Request(assignments=tuple(words[3::2]), shortcuts={"data.path": words[1]})
    question = question_of(short_run(request, 5, {}), "none") | {"steps": 5, "seconds": seconds, "least_steps": 3}
    assert take_steps(question | {"folder": str(tmp_path)}, lambda **_: None)["steps"] == steps


@pytest.mark.full
def test_fix_that_was_measured_to_be_slower_is_not_proposed(asked, tmp_path, capsys, monkeypatch):
    ask = steps.ask_for_steps

    def ask_slow(*question, **more):
        answer = ask(*question, **more)
        return answer | {"tokens_per_second": 1e4 / answer["tokens_per_second"]}

    monkeypatch.setattr(steps, "ask_for_steps", ask_slow)
    config = uneven(tmp_path)
    before, _ = checked(capsys, *config)
    assert before["padding"]["status"] == "warn" and before["padding"]["fix"]
    found, _ = checked(capsys, *config, "--measure", "padding")
    assert found["padding"]["status"] == "pass" and not found["padding"]["fix"]
    assert 'data.packing = "auto" was measured to be slower here' in found["padding"]["evidence"]
    assert found["padding"]["measured_gain"] == 2.0, "of what it is over the fix"
    fixed = tmp_path / "fixed.toml"
    assert main(["check", *config, "--fix", str(fixed)]) == 0
    assert "packing = false" in fixed.read_text()


@pytest.mark.full
def test_measure_all_measures_every_switch(asked, tmp_path, capsys):
    config = uneven(tmp_path, **{"training.weight_decay": 0})
    loaded = load_config(Request(assignments=tuple(config[3::2]), shortcuts={"data.path": config[1]}))
    switches = {one.name for one in run_checks(gather(loaded)) if not one.why_not_measured}
    assert {"padding", "weight_decay", "optimizer", "data_loading", "gradient_checkpointing"} <= switches
    found, printed = checked(capsys, *config, "--measure", "all")
    # What the plan refuses has its reason instead of a gain.
    measured = {name for name, one in found.items() if one["measured_gain"] is not None}
    reasons = {name for name, one in found.items() if one["measured"] and one["measured"]["reason"]}
    assert measured | reasons == switches and len(measured) >= 6
    for name in measured - {"padding"}:
        assert not found[name]["measured"]["is_difference"], name
        assert f"{name}: no measurable difference in speed" in printed


@pytest.mark.full
@pytest.mark.parametrize("fails", ["", "data.packing"])
def test_failed_measurement_is_reported_with_its_reason(asked, tmp_path, capsys, monkeypatch, fails):
    turns = []

    def ask(request, gpu, count, patch, seconds, /, **more):
        turns.append(patch)
        if (fails in patch) if fails else not patch:
            raise WorkerFailed("was killed", "killed, probably because memory ran out")
        return {"steps": 7, "tokens_per_second": 1.0, "peak_memory_bytes": 1, "loss": 1.0}

    monkeypatch.setattr(steps, "ask_for_steps", ask)
    found, printed = checked(capsys, *uneven(tmp_path), "--measure", "padding")
    who = patch_words({"data.packing": "auto"}) if fails else "current settings"
    assert found["padding"]["measured_gain"] is None
    assert found["padding"]["measured"]["reason"] == f"{who}: killed, probably because memory ran out"
    assert "cannot be measured" in printed and len(turns) == (2 if fails else 1)


@pytest.mark.full
def test_ctrl_c_keeps_the_measured_pairs_and_ends_with_code_3(asked, tmp_path, capsys, monkeypatch):
    ask = steps.ask_for_steps

    def interrupted(*question, **more):
        if len(asked) == 3:
            raise KeyboardInterrupt
        return ask(*question, **more)

    monkeypatch.setattr(steps, "ask_for_steps", interrupted)
    found, _ = checked(capsys, *uneven(tmp_path), "--measure", "padding", "--measure", "optimizer", code=3)
    # In the order of the checks: fused AdamW is looked at before padding.
    assert found["optimizer"]["measured"]["ratios"] == [1.0] and found["padding"]["measured"] is None


@pytest.mark.full
def test_switch_that_changes_nothing_or_cannot_be_planned_is_reported_with_its_reason(
    asked, tmp_path, capsys, monkeypatch
):
    def unchanged(before, after, patch):
        return "has no effect here: this model sees other documents"

    def refused(before, after, patch):
        raise InputError("needs 12 GiB of memory")

    reasons = {refused: "needs 12 GiB of memory", unchanged: unchanged(None, None, None)}
    for answer, reason in reasons.items():
        monkeypatch.setattr(gains, "why_unchanged", answer)
        found, printed = checked(capsys, *uneven(tmp_path), "--measure", "padding")
        assert not asked and found["padding"]["measured_gain"] is None
        assert found["padding"]["measured"]["reason"] == reason
        assert f"padding: cannot be measured: {reason} (tried on 20" in printed


def test_unknown_name_of_a_check_is_refused(capsys):
    for name, words in (("packing", "there is no check 'packing'"), ("padings", "did you mean padding?")):
        assert main(["check", "--measure", name]) == 2
        printed = capsys.readouterr()
        assert words in printed.err and not printed.out


@pytest.mark.full
def test_nothing_is_measured_while_a_run_trains(asked, tmp_path, capsys, monkeypatch):
    from tests.trained_runs import train

    run = train(tmp_path, "causal_lm", {"training.max_steps": 2})
    add_to_index(run.root)
    with RunLock(run.lock):
        assert main(["check", *uneven(tmp_path), "--measure", "all"]) == 2
    assert "causal_lm is training on this machine" in capsys.readouterr().err and not asked
    assert steps.training_run() == ""
