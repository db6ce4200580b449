"""The file of measurements on this machine: which plans use them, concurrent writers, and damage."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.planning.test_profiles_on_machines import FACTS, loaded_on, machine_of
from tui_trainer.advice.measured_gains import Gain, KeptGains, Measurable, keep_gain
from tui_trainer.cli import main
from tui_trainer.lines import diagnose as command
from tui_trainer.planning import plan as planning
from tui_trainer.planning import records
from tui_trainer.planning.measured_steps import (
    StepKey,
    keep_calibration,
    keep_measured_peak,
    keep_micro_batch,
    kept_micro_batch,
    measured_peaks,
    read_calibration,
)
from tui_trainer.planning.records import (
    FILE,
    GAIN,
    KINDS,
    MICRO_BATCH,
    PEAK,
    STEP_SECONDS,
    TRIAL,
    Key,
    count_kinds,
    find_records,
    keep_record,
    records_of_device,
)  # fmt: skip
from tui_trainer.runs.registry import state_folder

CPU = "a processor, 2 threads"
VERSIONS = "torch 2.15, transformers 5.23"
STEP = StepKey(f"chat llama-16-1-bf16, {VERSIONS}", "lora16-aa", "4of8x64")
PACKED = {"data.packing": True}
FOUND = Gain(at="2026-11-23T10:00:00Z", ratios=(1.6, 1.6), steps=8)
NOTHING = (None, None, 0, None, None)


def step(task="chat", shape="llama-16-1-bf16", versions=VERSIONS, setup="lora16-aa", cut="4of8x64") -> StepKey:
    return StepKey(f"{task} {shape}, {versions}", setup, cut)


def measurable(of: StepKey, device: str) -> Measurable:
    torch = of.model.partition(", torch ")[2].partition(",")[0]
    return Measurable(device=device, torch=torch, shape_key=str(of), settings={"data.packing": False})


def read_measurements(asked: StepKey, device: str, data: str = "rows") -> tuple:
    """Return all that a plan and its checks ask for: step seconds, rate, runs with a peak, micro-batch and gain."""
    calibration = read_calibration(device, asked, 1e9)
    peaks = measured_peaks(asked.record_key(device, data))
    kept = kept_micro_batch(asked.record_key(device, data))
    gain = KeptGains.read(measurable(asked, device)).find(PACKED)
    return (
        calibration.step_seconds,
        calibration.flops_per_second,
        sum(peak.runs for peak in peaks),
        kept.rows if kept else None,
        gain.speed_up if gain else None,
    )


@pytest.fixture
def kept_run():
    """Keep the measurements of one run of `STEP` on the processor."""
    keep_calibration(CPU, STEP, step_seconds=0.5, flops=1e9)
    keep_measured_peak(STEP.record_key(CPU, "rows"), 4, 8, 1000)
    keep_micro_batch(STEP.record_key(CPU, "rows"), 4, 8, {4: (0.5,)})
    keep_gain(measurable(STEP, CPU), PACKED, "packed", FOUND)


QUESTIONS = [
    (step(), CPU, "rows", (0.5, 2e9, 1, 4, 1.6)),
    (step(task="seq2seq"), CPU, "rows", NOTHING),
    (step(shape="llama-32-1-bf16"), CPU, "rows", NOTHING),
    (step(shape="llama-16-1-fp32"), CPU, "rows", NOTHING),
    (step(shape="gpt2-16-1-bf16"), CPU, "rows", NOTHING),
    (step(setup="full-aa"), CPU, "rows", NOTHING),
    (step(setup="lora16-bb"), CPU, "rows", NOTHING),
    (step(setup="lora16-offloaded-aa"), CPU, "rows", NOTHING),
    (step(), "a processor, 4 threads", "rows", NOTHING),
    (step(), "a card", "rows", NOTHING),
    (step(versions="torch 2.16, transformers 5.23"), CPU, "rows", NOTHING),
    (step(versions="torch 2.15, transformers 5.24"), CPU, "rows", NOTHING),
    # Other rows: the nearest rate, and nothing of what is exact.
    (step(cut="2of8x64"), CPU, "rows", (None, 2e9, 0, None, None)),
    (step(), CPU, "other rows", (0.5, 2e9, 0, None, 1.6)),
]


def test_a_measurement_is_used_only_for_the_same_model_setup_device_and_versions(kept_run, subtests):
    for asked, device, data, expected in QUESTIONS:
        with subtests.test(f"{asked} on {device}, {data}"):
            found = read_measurements(asked, device, data)
            assert tuple(round(one, 9) if isinstance(one, float) else one for one in found) == expected


@pytest.mark.full
def test_a_measured_gain_is_found_from_either_setting(kept_run):
    there = replace(measurable(STEP, CPU), settings=PACKED, shape_key="packed")
    assert KeptGains.read(there).find({"data.packing": False}).speed_up == 1 / 1.6
    assert KeptGains.read(there).find({"data.packing": False, "training.tf32": True}) is None


@pytest.mark.full
def test_a_card_without_a_name_is_not_mistaken_for_the_processor():
    hardware = machine_of("a100")
    nameless = replace(hardware, gpus=tuple(replace(gpu, name=None) for gpu in hardware.gpus[:1]))
    plan = planning.make(loaded_on(nameless, "char-lm"), nameless, FACTS)
    assert plan.device == "cuda"
    memory_device = Key.read(plan.memory_key).device
    assert memory_device == records.device_key("", 0, plan.device_name) != records.device_key(nameless.cpu_name, 1)


def test_only_the_newest_records_of_each_key_and_kind_are_kept(monkeypatch):
    for kind, most in KINDS.items():
        for number in range(most + 2):
            keep_record(kind, Key(device="a"), {"number": number}, "part")
        keep_record(kind, Key(device="a"), {"number": -1}, "other part")
        found = [record.figures["number"] for record in find_records(kind, Key(device="a"))]
        assert found == [*range(2, most + 2), -1]
        assert [one.figures["number"] for one in records_of_device(kind, "a")] == found
    monkeypatch.setattr(records, "_MOST_OF_A_KIND", 3)
    keep_record(TRIAL, Key(device="b"), {})
    keep_record(TRIAL, Key(device="c"), {})
    assert [one.count for one in count_kinds() if one.kind == TRIAL] == [3]


WRITER = """
import sys
from tui_trainer.planning.records import Key, keep_record
print("ready", flush=True)
sys.stdin.readline()
for number in range(60):
    keep_record("trial", Key(device=sys.argv[1]), {"number": number}, part=str(number))
"""


@pytest.mark.full
def test_two_programs_can_write_at_once():
    command = [sys.executable, "-c", WRITER]
    programs = [
        subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in ("one", "other")
    ]
    for program in programs:
        assert program.stdout.readline() == "ready\n"
    for program in programs:
        program.stdin.write("now\n")
        program.stdin.flush()
    for program in programs:
        program.communicate(timeout=1500)
        assert program.returncode == 0
    for name in ("one", "other"):
        assert [one.figures["number"] for one in find_records(TRIAL, Key(device=name))] == list(range(60))


def damaged(how: str) -> bytes:
    keep_record(TRIAL, Key(device="a"), {"words": "x" * 20_000})
    whole = (state_folder() / FILE).read_bytes()
    torn, overwritten = whole[: len(whole) // 2], whole[:4096] + b"\xff" * 8192
    return {"no database": b"{}" * 3000, "torn": torn, "overwritten": overwritten}[how]


def test_a_damaged_file_is_set_aside_with_a_warning(tmp_path, monkeypatch, capsys, subtests):
    for how in ("no database", "torn", "overwritten"):
        with subtests.test(how):
            monkeypatch.setenv("TUI_TRAINER_HOME", str(tmp_path / how))
            content = damaged(how)
            (state_folder() / FILE).write_bytes(content)
            assert find_records(TRIAL, Key(device="a")) == []
            assert "was renamed to measured.damaged-" in capsys.readouterr().err
            [aside] = records.damaged_files()
            assert aside.read_bytes() == content
            keep_record(TRIAL, Key(device="a"), {"number": 1})
            assert [one.figures for one in find_records(TRIAL, Key(device="a"))] == [{"number": 1}]
            assert capsys.readouterr().err == ""


def test_a_damaged_record_is_skipped():
    keep_record(TRIAL, Key(device="a"), {"number": 1}, "first")
    keep_record(TRIAL, Key(device="a"), {"number": 2}, "second")
    with sqlite3.connect(state_folder() / FILE) as db:
        db.execute("UPDATE records SET figures = '{' WHERE part = 'first'")
    db.close()
    assert [one.figures for one in find_records(TRIAL, Key(device="a"))] == [{"number": 2}]


def test_a_file_of_a_later_version_stays_unchanged(capsys):
    keep_record(TRIAL, Key(device="a"), {"number": 1})
    with sqlite3.connect(state_folder() / FILE) as db:
        db.execute("PRAGMA user_version = 2")
    db.close()
    before = (state_folder() / FILE).read_bytes()
    keep_record(TRIAL, Key(device="a"), {"number": 2})
    assert find_records(TRIAL, Key(device="a")) == [] and count_kinds() == []
    assert (state_folder() / FILE).read_bytes() == before and capsys.readouterr().err == ""


def test_reading_creates_no_file_and_an_impossible_folder_is_no_error(tmp_path, monkeypatch):
    assert find_records(TRIAL, Key()) == [] and count_kinds() == [] and not state_folder().exists()
    keep_record(TRIAL, Key(), {})
    assert (state_folder() / FILE).stat().st_mode & 0o777 == 0o600
    (tmp_path / "file").touch()
    monkeypatch.setenv("TUI_TRAINER_HOME", str(tmp_path / "file"))
    keep_record(TRIAL, Key(), {})
    assert find_records(TRIAL, Key()) == []


@pytest.mark.full
def test_a_python_without_sqlite_keeps_nothing_and_diagnose_says_so(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    keep_record(TRIAL, Key(), {})
    assert find_records(TRIAL, Key()) == [] and count_kinds() == []
    main(["diagnose", "--gpu", "none"])
    assert "built without sqlite3" in capsys.readouterr().out


def test_diagnose_shows_measurements_and_clears_them(kept_run, capsys):
    main(["diagnose", "--gpu", "none"])
    text = capsys.readouterr().out.partition("\nmeasured\n")[2]
    first = [line.split()[:3] for line in text.splitlines() if not line.startswith("   ")]
    assert first == [[kind, "1", "record,"] for kind in (GAIN, MICRO_BATCH, PEAK, STEP_SECONDS)]
    assert "chat, llama-16-1-bf16, a processor" in " ".join(text.split())
    main(["diagnose", "--gpu", "none", "--json", "--clear", PEAK, "--clear", GAIN])
    said = capsys.readouterr()
    measured = json.loads(said.out)["measured"]
    assert set(measured) == {MICRO_BATCH, STEP_SECONDS} and "cleared 2 records: peak_memory, gain" in said.err
    assert measured[STEP_SECONDS]["records"] == 1 and measured[STEP_SECONDS]["newest"]["task"] == "chat"
    assert main(["diagnose", "--clear", "peaks"]) == 2
    assert "unknown kind of measurement 'peaks'" in capsys.readouterr().err
    main(["diagnose", "--gpu", "none", "--clear", "all"])
    assert count_kinds() == [] and "none yet" in capsys.readouterr().out.partition("\nmeasured\n")[2]
