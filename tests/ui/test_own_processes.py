"""Commands that screens begin: what is said first, progress, cancel, the result, and what is refused beside a run."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.runs.journals import end, run_of, start, steps
from tests.ui.canned import CERTIFICATE_WORDS, CHOICES, RUNS, CannedRun, finding, open_canned, trained
from tests.ui.pictures import in_event_loop
from tui_trainer.downloading.environment import install_command
from tui_trainer.errors import InputError
from tui_trainer.launching import export_process
from tui_trainer.runs.folder import RunFolder
from tui_trainer.ui.own_commands import commands_file
from tui_trainer.ui.screens.runs import refusal
from tui_trainer.units import MIB

MICRO, ROWS, RATE = (
    f"training.{name}" for name in ("per_device_train_batch_size", "effective_batch_size", "learning_rate")
)
REHEARSED = (
    {"part": "loading"},
    {"part": "loading", "seconds": 4.0},
    {"part": "largest micro-batch"},
    {"part": "largest micro-batch", "seconds": 2.0, "peak_memory_bytes": 300 * MIB, "rows": 2, "longest": 458,
     "row": 18, "begins": "The sheep", "failed": "out of memory with 8 rows per pass, but not with 2"},
    {"part": "typical steps"},
)  # fmt: skip
REHEARSAL = {
    "is_ready": False, "faults": [{"part": "largest micro-batch", "message": "out of memory", "patch": {MICRO: 2}}],
    "peak_memory_bytes": 300 * MIB, "planned_memory_bytes": 200 * MIB, "step_seconds": 0.5, "total_steps": 100,
    "run_seconds": [60.0, 50.0, 70.0], "planned_seconds": 55.0, "disk_bytes": 5 * MIB, "disk_free_bytes": 900 * MIB,
}  # fmt: skip


@in_event_loop
async def test_a_rehearsal_shows_each_part_and_one_key_applies_what_works(program):
    async with open_canned(size=(100, 40)) as screens:
        program.says("a warning of a library", *REHEARSED)
        await screens.press("2", "w")
        await screens.ticks("FAILED: out of memory with 8 rows per pass, but not with 2", "300.0 MiB",
                            "row 18 (begins 'The sheep')", "typical steps ...", "close, keep running")  # fmt: skip
        await screens.press("c")
        await screens.ticks("cancelled; nothing was saved")
        await screens.press("r")
        await screens.ticks("typical steps ...")
        program.end(REHEARSAL)
        await screens.ticks(f"{MICRO} = 2 works here", "the run of 100 steps takes about", "a apply what works")
        await screens.press("a")
        await screens.shows("Enter edit", gone="Rehearsal")
        assert screens.bench.document.value(MICRO) == 2
        assert [line.partition(" ")[0] for line in program.commands] == ["rehearse"] * 2


@in_event_loop
async def test_the_end_of_a_command_is_reported_on_other_screens_with_its_reason_where_it_failed(program):
    async with open_canned(size=(100, 30)) as screens:
        program.says("tui-trainer: data.path is not there")
        for ends, words in (((), "data.path is not there"), (({**REHEARSAL, "is_ready": True, "faults": []},),
                                                             "nothing failed: the run is ready to start")):  # fmt: skip
            await screens.press("2", "w")
            await screens.ticks("data.path is not there ...")
            await screens.press("escape", "1")
            program.end(*ends, code=0 if ends else 2)
            await screens.ticks(words, "2 Config new")
            program.says("tui-trainer: data.path is not there ...")


def tuned(name: str, factor: float, turns: int, reason: str = "") -> dict:
    return {
        "name": name, "settings": {}, "reason": reason, "turns": turns, "step_seconds": 0.21 / factor,
        "step_seconds_spread": 0.03, "samples_per_second": 150 * factor, "tokens_per_second": 5210 * factor,
        "peak_memory_bytes": 300 * MIB, "utilisation_share": 0.9, "loss": 1.9871, "speed_up": factor, "is_clear": None,
        "whole_seconds": None, "others_cores": 1.5, "slowed_by": "", "steps": 12,
    }  # fmt: skip


def sized(rows: int, speed: float, **more: object) -> dict:
    return {
        "rows": rows, "learning_rate": 0.001, "failed": "", "turns": 2, "rows_per_second": speed,
        "tokens_per_second": 10 * speed, "step_seconds": rows / speed, "utilisation_share": 0.9,
        "memory_bytes": rows * MIB, **more,
    }  # fmt: skip


TUNED = {
    "sentence": "1.62 times as fast as now (3 comparisons, +-4%)", "patch": {"data.group_by_length": True, MICRO: 8},
    "speed_up": 1.62, "pairs": 3, "effective_batch_size": 32, "largest_micro_batch": 32, "cut_short": "",
    "micro_batches": [], "disturbed_by": "other programs used 0.4 to 1.2 of 2 cores meanwhile",
    "variants": [
        tuned("current settings", 1.0, 5), tuned("group_by_length = true, 8 rows x 4", 1.62, 3),
        tuned("packing = true", 1.0, 0, "has no effect here: each row is read alone"),
    ],
}  # fmt: skip
SIZES = {
    "sentence": "64 rows per step are 1.30 times as fast", "patch": {ROWS: 64, RATE: 0.002}, "effective_batch_size": 32,
    "sizes": [sized(32, 100.0), sized(64, 130.0), sized(128, 1, failed="out of memory", turns=0)],
}  # fmt: skip
SWITCHES = {
    "steps": 12, "batch": 8, "rounds": 2, "whole": False, "cut_short": "", "starts": [],
    "variants": [tuned("baseline", 1.0, 2), tuned("bf16", 1.0, 0, "no card here")],
    "doubts": ["other programs used 1.5 to 1.5 of 2 cores meanwhile: measure again when they have ended"],
}  # fmt: skip


@in_event_loop
async def test_what_was_measured_is_a_table_and_what_is_better_is_applied_with_one_key(program):
    async with open_canned(size=(120, 45)) as screens:
        program.says("tui-trainer: measuring current settings", "tui-trainer: 210 ms/step")
        await screens.press("2")
        for key, command, result, words in (
            ("m", "tune", TUNED, ("1.62", "has no effect here", "other programs used 0.4", "a apply the fastest")),
            ("M", "tune --effective", SIZES, ("64 rows per step are 1.30", "130.0 rows/s", "a apply the best size")),
            ("b", "bench train", SWITCHES, ("12 steps per round", "bf16: no card here", "other programs used 1.5")),
        ):
            await screens.press(key)
            await screens.ticks("measuring current settings", "210 ms/step", "c cancel")
            assert program.commands[-1].startswith(f"{command} --set")
            program.end(result)
            text = await screens.ticks(*words, gone="c cancel")
            if key == "M":
                curve = {line.split()[1]: line.count("\u2588") for line in text.split("\n") if " rows/s" in line}
                assert 0 < curve["32"] < curve["64"]
            assert ("a apply" in text) == ("patch" in result)
            await screens.press("a" if "patch" in result else "escape")
            await screens.shows("Enter edit", gone="Esc close")
            for name, value in result.get("patch", {}).items():
                assert screens.bench.document.value(name) == value


@pytest.mark.full
@in_event_loop
async def test_one_measurement_goes_on_at_a_time_and_none_beside_a_run(program):
    async with open_canned(size=(100, 30)) as screens:
        await screens.press("2", "m")
        await screens.ticks("loading libraries ...")
        await screens.press("escape", "M")
        await screens.shows("tune is still running and would distort the measurement")
        screens.bench.run = CannedRun(trained(60), True)
        await screens.ticks("tune was stopped: a run is training")
        await screens.until(lambda: screens.app.tick() or not screens.bench.tunings.running_process)
        for key in "wmMb":
            await screens.press("escape", key)
            await screens.shows("a run is training; the run and the measurement")
        assert len(program.commands) == 1


@pytest.fixture
def chat(tmp_path, monkeypatch) -> RunFolder:
    """A finished run, the only one."""
    monkeypatch.chdir(tmp_path)
    run = run_of(tmp_path / "runs", "chat", start(20), *steps(1, 20), end(20))
    run.model.mkdir()
    return run


@pytest.mark.full
@in_event_loop
async def test_a_command_about_a_run_begins_with_enter_shows_how_far_it_is_and_is_found_again(chat, program):
    async with open_canned(size=(100, 30)) as screens:
        program.says("a warning of a library", "{ not json", "tui-trainer: round 1",
                     {"what": "downloading a", "done": 5 * MIB, "total": 10 * MIB, "unit": "bytes"})  # fmt: skip
        await screens.press("5")
        await screens.shows("\u25b8 ")
        await screens.press("M")
        await screens.click("e  evaluate")
        await screens.shows("Evaluate chat", "Computes the loss and scores of chat", "Enter begin")
        assert program.commands == []
        await screens.press("enter")
        await screens.ticks("downloading a, 5.0 MiB of 10.0 MiB", "close, keep running")
        await screens.press("escape", "M", "e")
        await screens.shows("downloading a, 5.0 MiB of 10.0 MiB")
        await screens.press("c")
        await screens.ticks("cancelled", "r run again")
        await screens.press("r")
        program.end("tui-trainer: the run has no model", code=2)
        await screens.ticks("the run has no model", "r run again")
        await screens.press("escape")
        screens.bench.run = CannedRun(trained(60), True)
        await screens.press("M", "b", "enter")
        await screens.shows("a run is training; the run and the measurement", gone="Speed of")
        await screens.press("M", "e", "enter")
        await screens.ticks("downloading a")
        assert program.commands[1:] == [f"evaluate {chat.root}", f"evaluate {chat.root} --gpu none"]


@pytest.mark.full
@in_event_loop
async def test_predictions_go_into_a_new_file_beside_the_data(chat, program, tmp_path):
    (tmp_path / "a b.csv").write_text("text\nsome words\n")
    (tmp_path / "a-b.chat.jsonl").touch()
    async with open_canned(size=(140, 40)) as screens:
        await screens.press("5")
        await screens.shows("\u25b8 chat")
        await screens.press("M", "p")
        await screens.shows("Predict", "some words")
        await screens.press("enter")
        await screens.shows("Enter begin", "a-b.chat-2.jsonl")


@in_event_loop
async def test_what_changes_this_machine_is_shown_first_and_done_after_enter(program):
    async with open_canned(size=(100, 30)) as screens:
        await screens.press("3", "i")
        await screens.shows("this check has nothing to install")
        one = finding("four bits", "fail", 1, "no bitsandbytes here")
        advice = "install it: uv pip install bitsandbytes, then try again"
        screens.bench._checked([replace(one, verdict=replace(one.verdict, advice=advice))])
        offered = {"offer": ["into /env:", "  uv pip install bitsandbytes"], "hint": "--yes"}
        program.says("tui-trainer: looking", *json.dumps(offered, indent=1).split("\n"))
        await screens.press("i")
        await screens.ticks("Install bitsandbytes", "looking ...", gone="Enter confirm")
        program.end("tui-trainer: a note", code=3)
        await screens.ticks("uv pip install bitsandbytes", "Enter confirm", gone="a note")
        program.says()
        await screens.press("enter")
        await screens.ticks("loading libraries ...")
        await screens.until(lambda: program.commands == ["install bitsandbytes", "install bitsandbytes --yes"])
        # It goes on, and ends when the screens are left.
        await screens.press("escape", "q")
        await screens.shows("installing bitsandbytes is running and will end when you quit")
        await screens.press("escape", "i")
        program.end({"words": ["installed", "after a restart"]})
        await screens.ticks("after a restart", gone="c cancel")


SPEED = {
    "run": "chat", "rows": 32, "rounds": 2, "writes": False, "cut_short": "", "inference_samples_per_second": None,
    "variants": [
        {"name": "one by one", "turns": 2, "samples_per_second": 10.0, "samples_per_second_spread": 0.02,
         "tokens_per_second": 100.0, "first_token_seconds": None, "latency_seconds_50": 0.1,
         "latency_seconds_95": 0.2, "peak_memory_bytes": MIB, "disk_bytes": MIB, "loss": 1.25,
         "scores": {"accuracy": 0.5}, "same_predictions": 1.0, "reason": ""},
        {"name": "onnx", "turns": 0, "reason": "onnxruntime is not installed"},
    ],
}  # fmt: skip


@pytest.mark.full
@in_event_loop
async def test_the_speed_of_a_run_is_a_table_with_what_was_not_measured(chat, program):
    async with open_canned(size=(120, 40)) as screens:
        await screens.press("5")
        await screens.shows("\u25b8 ")
        await screens.press("M", "b", "enter")
        program.end(*json.dumps(SPEED, indent=1).split("\n"))
        text = await screens.ticks("chat: 32 held-out rows per round, medians of up to 2 rounds", "1.2500")
        assert "onnx: onnxruntime is not installed" in text and "10.0 \u00b12%" in text


@pytest.fixture
def forms(monkeypatch) -> dict[str, str]:
    """Makes every run one that can be exported, but those of a name with a reason."""
    refused: dict[str, str] = {}

    def choices(folder):
        if why := refused.get(folder.name):
            raise InputError(why, where=folder.name)
        return [replace(one, is_there=one.is_there or (folder.exports / one.name).is_dir()) for one in CHOICES]

    monkeypatch.setattr(export_process, "choices", choices)
    return refused


WRITING = {"what": "writing", "done": 3, "total": 12, "unit": "tensors"}


def exported(is_good: bool = True) -> dict:
    return {"folder": "/data/export/merged", "words": list(CERTIFICATE_WORDS), "is_good": is_good}


@in_event_loop
async def test_formats_are_listed_with_what_they_need_and_an_export_can_be_cancelled(chat, program, forms):
    async with open_canned(size=(100, 30)) as screens:
        program.says("a warning", WRITING)
        await screens.press("5")
        await screens.shows("\u25b8 ")
        await screens.press("x")
        text = await screens.shows(" free.", "Takes about 41 s", "Enter export")
        assert re.search(r"\u25b8 adapter .* ~4.0 MiB", text) and re.search(r"gguf .* not possible", text)
        assert re.search(r"int8 .* exported, 2.0 GiB", text)
        await screens.press("down")
        await screens.shows("llama.cpp's converter was not found", gone="Enter export")
        await screens.press("up", "enter")
        await screens.ticks("exporting", "writing, 3 of 12 tensors", "Esc close, keep exporting")
        await screens.press("c")
        await screens.ticks("cancelled; nothing was saved", "Enter export")
        assert program.commands == [f"export {chat.root} --to adapter"]
        (chat.exports / "adapter").mkdir(parents=True)
        await screens.press("end", "enter")
        text = await screens.ticks("exporting", "exported, 4.0 MiB")
        assert re.search(r"\u25b8 onnx .* exporting", text), "what was exported before keeps its mark"
        await screens.press("c")
        await screens.ticks("cancelled; nothing was saved")
        await screens.press("home", "Y")
        await screens.shows("Copy a command")
        await screens.press("enter")
        await screens.until(lambda: screens.app.clipboard == f"tui-trainer {program.commands[0]}")


@pytest.mark.full
@in_event_loop
async def test_the_certificate_of_an_export_is_reported_and_stands_there_when_the_dialog_is_opened_again(
    chat, program, forms
):
    async with open_canned(size=(100, 30)) as screens:
        program.says(WRITING)
        for is_good, told, verdict in (
            (True, "exported chat to merged: /data/export/merged", "\u2713 the export matches the trained model"),
            (False, "could not export chat to merged", "differs from the trained model"),
        ):
            await screens.press("5")
            await screens.shows("\u25b8 chat")
            await screens.press("x")
            await screens.shows("free." if is_good else "held-out loss")
            await screens.press(*["down"] * (3 if is_good else 0), "enter")
            await screens.ticks("writing, 3 of 12 tensors")
            (chat.exports / "merged").mkdir(parents=True, exist_ok=True)
            await screens.press("escape", "D")
            await screens.shows("delete: chat is being exported")
            program.end(exported(is_good))
            await screens.ticks(told)
            await screens.press("x")
            text = await screens.shows(
                verdict, "held-out loss 1.4210 -> 1.4210", "/data/export/merged", "\u25b8 merged"
            )
            assert re.search(rf"merged .* {'exported' if is_good else 'failed'}", text)
            await screens.press("escape")


@pytest.mark.full
@in_event_loop
async def test_leaving_asks_while_an_export_is_written_and_another_run_waits(chat, program, forms, tmp_path):
    run_of(tmp_path / "runs", "other", start(20), *steps(1, 20), end(20)).model.mkdir()
    forms["other"] = ""
    async with open_canned(size=(100, 30)) as screens:
        await screens.press("5")
        await screens.shows("\u25b8 ")
        await screens.press("x")
        await screens.shows("Export other", "is free.")
        await screens.press("enter")
        await screens.ticks("loading libraries and the model")
        await screens.press("escape", "down", "x")
        await screens.shows("Export chat", "other is being exported to adapter: wait until it is done")
        await screens.press("escape", "q")
        await screens.shows("Quit?", "The export of other to adapter")
        await screens.press("c")
        await screens.until(lambda: screens.ended)
        assert screens.bench.exports.process.is_cancelled


@pytest.mark.full
@in_event_loop
async def test_the_marked_are_exported_one_after_another_and_each_result_is_reported(tmp_path, program, forms):
    for name in "abc":
        run_of(tmp_path / "runs", f"run-{name}", start(20), *steps(1, 20), *[end(20)] * (name != "c"))
    forms["run-c"] = "it is interrupted"
    async with open_canned(size=(120, 24)) as screens:
        program.says(WRITING)
        await screens.press("5")
        await screens.shows("3 runs")
        await screens.press("*", "x")
        await screens.shows("Export 3 runs", "2 of 3 runs, ~8.0 MiB", "run-c is skipped: it is interrupted")
        await screens.press("down")
        await screens.shows("run-a is skipped: llama.cpp's converter", gone="Enter export")
        await screens.press("up", "enter")
        await screens.ticks("exporting 1 of 2: run-b to adapter, 25%")
        program.end(exported())
        # The message covers the last line for some seconds.
        await screens.ticks("exported run-b to adapter")
        await screens.ticks("exporting 2 of 2: run-a to adapter, 25%")
        program.end("tui-trainer: the disk is full", code=1)
        await screens.ticks(
            "1 of 2 runs exported; could not export run-a to adapter: the disk is full", gone="exporting 2"
        )


def test_only_a_finished_run_is_exported():
    for one in RUNS:
        assert (refusal("export", one, "S") == "") == (one.status == "finished"), one.name


@pytest.mark.full
@in_event_loop
async def test_a_config_of_another_tool_is_shown_and_taken_as_one_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(Path(__file__).parents[1] / "importing/configs/axolotl_full.yaml", tmp_path / "theirs.yaml")
    async with open_canned(size=(100, 30)) as screens:
        before = screens.bench.document.user_values()
        await screens.press("2", "i")
        await screens.shows("theirs.yaml", "base_model")
        await screens.press("enter")
        text = await screens.shows("axolotl", "->", "Esc back")
        if "w ignore these keys" in text:
            await screens.press("w")
        await screens.shows("Enter import into Config", "not imported")
        await screens.press("enter")
        await screens.shows("settings from theirs.yaml", "u to undo")
        assert screens.bench.document.user_values() != before
        await screens.press("u")
        await screens.until(lambda: screens.bench.document.user_values() == before)


def test_what_is_installed_is_an_extra_or_a_library_with_its_versions(monkeypatch, tmp_path):
    (tmp_path / "uv").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    command = install_command(["bitsandbytes", "onnx"])
    assert command[:4] == ["uv", "pip", "install", "--python"]
    for library in ("bitsandbytes", "onnxruntime"):
        assert any(one.startswith(library) and ">=" in one for one in command)
    with pytest.raises(InputError, match="no package named 'bitsandbite' to install"):
        install_command(["bitsandbite"])


@in_event_loop
async def test_an_own_command_runs_on_a_run_after_its_exact_line_was_seen(chat, tmp_path, subtests):
    root = chat.root.rename(chat.root.parent / "it's a; $(chat)")
    write = partial(commands_file().write_text, encoding="utf-8")
    commands_file().parent.mkdir(parents=True, exist_ok=True)
    write("""[commands]
look = '''printf "%s|" {path} "of {name}" '${HOME} {print $1}' '''
fails = "sh -c 'exit 3'"
wrong = "ls {pth}"
shell = "sh -c 'ls {path}'"
quotes = "ls '{path}"
number = 5
gone = "no-such-program"
""")
    async with open_canned(size=(200, 30)) as screens:
        await screens.press("5")
        await screens.shows("it's a;")
        await screens.press("M")
        await screens.shows('1  look: printf "%s|" {path}', "2  fails: sh -c 'exit 3'", "3  wrong: ls {pth}")
        await screens.press("1")
        await screens.shows(f"printf '%s|' {shlex.quote(str(root))}"[:60], "Enter begin")
        assert not screens.bench.tools[f"look: {root.name}"].process, "nothing runs before Enter"
        await screens.press("enter")
        await screens.ticks(f"{root.name}|of {root.name}|${{HOME}} ", "r run again")
        await screens.press("escape", "M", "2", "enter")
        await screens.ticks("the command ended with exit code 3")
        await screens.press("escape")
        for key, words in (
            ("3", "commands.toml: wrong: unknown placeholder {pth}; use {path} or {name}"),
            ("4", "commands.toml: shell: in a shell command, {path} must be a separate word"),
            ("5", "commands.toml: quotes: No closing quotation"),
            ("6", "commands.toml: number: a command must be a text in quotes"),
        ):
            with subtests.test(words):
                await screens.press("M", key)
                await screens.shows(words)
        await screens.press("M", "7", "enter")
        await screens.shows("could not start a process: No such file")
        await screens.press(":", *"look")
        await screens.shows("Runs: look: printf")
        await screens.press("escape")
        write("[command]\n")
        await screens.press("M")
        await screens.shows("1  commands.toml: the file has no table [commands]")
