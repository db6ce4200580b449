"""Commands begun from the screens: what is said first, progress, cancel, the result; what is refused beside a run."""

from __future__ import annotations

import json
import shutil
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.downloading.fake_hub import FakeHub, environment_of, serving
from tests.models.conftest import llama_folder
from tests.trained_runs import asked_row, write_rows
from tests.ui.bare_app import seen
from tests.ui.canned import CannedBench, finding
from tests.ui.pictures import in_event_loop
from tests.ui.screens import open_screens
from tests.ui.test_hardware_page import CPU_ONLY
from tui_trainer.bench.rehearsal import SizesProcess, SwitchesProcess
from tui_trainer.config.load import Request
from tui_trainer.downloading import environment as installing
from tui_trainer.errors import InputError
from tui_trainer.launching.command_process import JsonProcess
from tui_trainer.runs.folder import RunFolder
from tui_trainer.ui import commands
from tui_trainer.ui.command_dialogs import MenuDialog, ToolDialog, offer
from tui_trainer.ui.own_processes import BESIDE_A_RUN, Measurement, Tool
from tui_trainer.ui.screens.config_dialogs import SizesDialog, SwitchesDialog
from tui_trainer.ui.spans import UNICODE
from tui_trainer.ui.workbench import Workbench
from tui_trainer.units import MIB

__all__ = ["llama_folder"]


@asynccontextmanager
async def opened(size=(100, 30)):
    async with open_canned(CPU_ONLY, size=size) as screens:
        yield screens


class Told(JsonProcess):
    """A process that tells what it is given, and was begun with these arguments."""

    def __init__(self, arguments=(), *, told=(), alive=True, exit_code=0) -> None:
        self.arguments = tuple(arguments)
        self.lines, self.part, self.result, self.reason = [], "loading libraries", None, ""
        self.alive, self.is_cancelled, self._ended = True, False, False
        for one in told:
            for line in one.split("\n"):
                self._hear(line)
        if not alive:
            self.alive = False
            self._end(exit_code)

    def cancel(self) -> None:
        self.is_cancelled = True

    def poll(self) -> bool:
        return False

    def end(self) -> None:
        self.is_cancelled = True


@pytest.fixture
def bench(monkeypatch):
    """A workbench whose commands are only noted."""
    begun = []

    def begin(arguments, environment):
        begun.append(Told(arguments))
        return begun[-1]

    monkeypatch.setattr("tui_trainer.launching.command_process.JsonProcess", begin)
    told, shown = [], []
    bench = Workbench(None, CPU_ONLY, UNICODE)
    bench.app = SimpleNamespace(open=shown.append, open_next=shown.append, key_of=lambda name: name)
    bench.background = SimpleNamespace(is_busy=lambda name: False)
    monkeypatch.setattr(bench, "tell", lambda *words: told.append(words))
    return SimpleNamespace(bench=bench, begun=begun, told=told, shown=shown)


def test_progress_sentences_and_indented_json_are_told_apart_from_warnings():
    process = Told(told=[
        "a warning of a library", "{ not json", "tui-trainer: round 1",
        json.dumps({"what": "downloading a", "done": 5 * MIB, "total": 10 * MIB, "unit": "bytes"}),
    ])  # fmt: skip
    assert process.part == "downloading a" and process.progress == (5 * MIB, 10 * MIB, "bytes")
    process._hear("tui-trainer: and now")
    assert process.part == "and now" and process.progress == (0.0, None, "") and process.result is None
    for line in json.dumps({"rows": [1, {"a": 2}], "cut_short": ""}, indent=1).split("\n"):
        process._hear(line)
    assert process.result == {"rows": [1, {"a": 2}], "cut_short": ""}


def test_nothing_begins_before_enter_and_it_can_be_cancelled(bench):
    tool = Tool(bench.bench, "evaluating chat", ["evaluate", "chat"])
    dialog = ToolDialog(bench.bench, tool, "Evaluate chat", ["Loss and scores."], lambda found, width: found["words"])
    before, running, cancelled = seen(dialog, "enter", "c")
    assert "Loss and scores." in before and "Enter begin" in before and bench.begun[0].arguments == ("evaluate", "chat")
    assert "loading libraries ..." in running and "Esc close, it goes on" in running and "ending ..." in cancelled
    tool.process = Told(told=[json.dumps({"what": "rows", "done": 3, "total": 12, "unit": "rows"})])
    assert "rows, 3 of 12 rows" in seen(ToolDialog(bench.bench, tool, "E", [], lambda *_: []))[0]
    tool.process = Told(told=["tui-trainer: the run has no model"], alive=False, exit_code=2)
    assert "the run has no model" in seen(ToolDialog(bench.bench, tool, "E", [], lambda *_: []))[0]


def test_what_asks_first_is_begun_again_with_yes_and_only_once_it_was_agreed_to(bench):
    commands.install(bench.bench, ["gpu"])
    tool = bench.bench.tools["installing gpu"]
    assert bench.begun[0].arguments == ("install", "gpu") and tool.asks is None
    offered = json.dumps({"offer": ["into /env:", "  uv pip install x"], "hint": "--yes"}, indent=1)
    tool.process = Told(told=[offered, "tui-trainer: a note"], alive=False, exit_code=3)
    show = lambda: ToolDialog(bench.bench, tool, "Install gpu", [], lambda found, _: found["words"])  # noqa: E731
    # What it would do is told a moment before it has ended.
    tool.process, ended = Told(told=["tui-trainer: looking", offered]), tool.process
    assert "looking ..." in seen(show())[0] and tool.asks is None
    tool.process = ended
    shown, running = seen(show(), "enter")
    assert "uv pip install x" in shown and "Enter do it" in shown and "a note" not in shown
    assert bench.begun[1].arguments == ("install", "gpu", "--yes") and "loading libraries" in running
    tool.process = Told(told=[json.dumps({"words": ["installed", "after a restart"]})], alive=False)
    assert "after a restart" in seen(show())[0] and tool.asks is None


def test_a_measurement_waits_for_a_run_and_for_others_and_the_rest_says_that_it_slows_the_run(bench, monkeypatch):
    folder = RunFolder(Path("/data/runs/chat"))
    commands.bench_run(bench.bench, folder)
    commands.evaluate(bench.bench, folder)
    assert bench.begun == []
    speed, evaluation = bench.shown
    bench.bench.tunings.process = Told()
    assert seen(speed, "enter")[1] == "" and bench.told[-1][0].startswith("tune goes on")
    assert "tune goes on: this disturbs what it measures" in seen(evaluation)[0]
    bench.bench.tunings.process = None
    monkeypatch.setattr(Workbench, "run_is_alive", True)
    commands.bench_run(bench.bench, folder)
    assert seen(bench.shown[-1], "enter")[1] == "" and bench.told[-1] == (BESIDE_A_RUN, "warn") and not bench.begun
    commands.evaluate(bench.bench, folder)
    shown, _ = seen(bench.shown[-1], "enter")
    assert "takes processor time and memory from it" in shown and bench.begun[0].arguments[-2:] == ("--gpu", "none")
    commands.predict(bench.bench, folder, "rows.csv")
    text = seen(bench.shown[-1], size=(200, 40))[0]
    assert "rows.chat.jsonl" in text and "evaluating chat on its held-out rows goes on as well" in text
    bench.bench.tools["bench chat"].process = measuring = Told()
    bench.bench.tools["bench chat"].poll()
    assert measuring.is_cancelled and bench.told[-1][0].startswith("bench chat ends: a run trains")
    assert evaluation.command is not bench.shown[-1].command


def test_the_end_is_a_notice_and_the_box_of_a_command_that_goes_on_is_the_same(bench):
    folder = RunFolder(Path("/data/runs/chat"))
    commands.evaluate(bench.bench, folder)
    tool = bench.shown[-1].command
    tool.process = Told()
    commands.evaluate(bench.bench, folder)
    assert bench.shown[-1].command is tool
    tool.process = Told()
    tool.process.is_cancelled, tool.process.poll = True, lambda: True
    tool.process.reason = "cancelled"
    tool.poll()
    assert bench.told[-1] == ("evaluating chat on its held-out rows: cancelled", "text")
    tool.process = Told(told=[json.dumps({"rows": 1})], alive=False)
    tool.process.poll = lambda: True
    tool.poll()
    assert bench.told[-1] == ("chat is evaluated", "good")
    tool.process = Told(told=["tui-trainer: no such file"], alive=False, exit_code=2)
    tool.process.poll = lambda: True
    tool.poll()
    assert bench.told[-1] == ("evaluating chat on its held-out rows: no such file", "bad")


@in_event_loop
async def test_a_line_of_a_menu_is_clicked(monkeypatch):
    chosen = []
    async with opened((80, 24)) as screens:
        answers = [(key, f"do {key}", lambda key=key: chosen.append(key)) for key in "aB"]
        screens.app.open(MenuDialog("More", answers))
        await screens.click("do B")
        await screens.until(lambda: chosen == ["B"])
        assert screens.app.dialog is None


def test_predictions_stand_beside_their_file_under_a_name_that_is_free(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, data = RunFolder(Path("/data/runs/chat")), tmp_path / "in"
    data.mkdir()
    (data / "a b.csv").touch()
    assert commands._out_for(run, str(data / "a b.csv")) == data / "a-b.chat.jsonl"
    (data / "a-b.chat.jsonl").touch()
    assert commands._out_for(run, str(data / "a b.csv")) == data / "a-b.chat-2.jsonl"
    assert commands._out_for(run, "hub:org/rows") == tmp_path / "rows.chat.jsonl"


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


def test_the_speed_of_a_run_is_a_table_with_what_was_not_measured(bench):
    commands.bench_run(bench.bench, RunFolder(Path("/data/runs/chat")))
    bench.shown[-1].command.process = Told(told=[json.dumps(SPEED, indent=1)], alive=False)
    text = seen(bench.shown[-1], size=(120, 40))[0]
    assert "chat: 32 held-out rows in each turn, medians of up to 2 turns" in text and "1.2500" in text
    assert "onnx: onnxruntime is not installed" in text and "10.0 \u00b12%" in text


def size(rows: int, speed: float) -> dict:
    return {"rows": rows, "learning_rate": 0.001, "failed": "", "turns": 2, "rows_per_second": speed,
            "tokens_per_second": 10 * speed, "step_seconds": rows / speed, "utilisation_share": 0.9,
            "memory_bytes": rows * MIB}  # fmt: skip


def as_process(kind, told: dict):
    process = object.__new__(kind)
    process.lines, process.part, process.result, process.reason = [], "", None, ""
    process.alive, process.is_cancelled = False, False
    process._hear(json.dumps(told))
    return process


def test_rows_of_a_step_are_a_curve_and_the_best_is_applied_with_one_key(bench, monkeypatch):
    applied = []
    monkeypatch.setattr(bench.bench, "apply", lambda patch, label: applied.append((patch, label)) or ())
    patch = {"training.effective_batch_size": 64, "training.learning_rate": 0.002}
    failed = {**size(128, 1), "failed": "out of memory", "turns": 0}
    bench.bench.sizes.process = as_process(SizesProcess, {
        "sentence": "64 rows a step are 1.30 times as fast", "patch": patch, "effective_batch_size": 32,
        "sizes": [size(32, 100.0), size(64, 130.0), failed],
    })  # fmt: skip
    text, after = seen(SizesDialog(bench.bench), "a")
    curve = {
        line.split()[1]: line.count("\u2588") for line in text.split("\n") if "rows/s" in line and "\u2588" in line
    }
    assert 0 < curve["32"] < curve["64"] and "64 rows a step are 1.30 times" in text and "tokens/s" in text
    assert after == "" and applied == [(patch, "what tune --effective found")]


def test_switches_of_training_are_a_table_with_what_disturbed_it(bench):
    row = {"name": "baseline", "settings": {}, "reason": "", "turns": 2, "step_seconds": 0.2, "speed_up": 1.0,
           "step_seconds_spread": 0.03, "samples_per_second": 10.0, "tokens_per_second": 100.0, "is_clear": None,
           "utilisation_share": 0.9, "peak_memory_bytes": MIB, "loss": 1.9, "others_cores": 1.5,
           "slowed_by": "", "whole_seconds": None, "steps": 12}  # fmt: skip
    bench.bench.switches.process = as_process(SwitchesProcess, {
        "steps": 12, "batch": 8, "rounds": 2, "whole": False, "cut_short": "", "starts": [],
        "variants": [row, {**row, "name": "bf16", "turns": 0, "reason": "no card here"}],
        "doubts": ["others used 1.5 to 1.5 of 2 cores meanwhile: measure again when they are gone"],
    })  # fmt: skip
    text = seen(SwitchesDialog(bench.bench), size=(120, 40))[0]
    assert "12 steps in each turn" in text and "others used 1.5 to 1.5 of 2 cores" in text
    assert "bf16: no card here" in text and "apply" not in text


def test_measurements_of_the_config_are_refused_while_another_goes_on(bench):
    bench.bench.switches.process = Told()
    offer(SizesDialog(bench.bench), bench.bench)
    assert bench.told[-1][0] == "bench train goes on: each would disturb the other" and not bench.shown
    assert isinstance(bench.bench.sizes, Measurement) and bench.bench.sizes.process is None


@pytest.fixture
def finished_run(finished):
    """Made before there is an event loop."""
    return finished("sequence_classification")


@pytest.mark.e2e
@in_event_loop
async def test_a_finished_run_is_evaluated_and_predicts_a_file_from_the_train_screen(
    finished_run, tmp_path, monkeypatch
):
    run = finished_run
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "asked.jsonl", [asked_row("sequence_classification", n) for n in range(12)])
    async with opened() as screens:
        screens.bench.attach_to(run)
        await screens.shows("held out", "result")
        await screens.press("M")
        text = await screens.shows("More with", "e  evaluate", "p  predict a file", "r  write its report")
        assert "x  export" in text and "w  try the model" in text
        await screens.press("e")
        await screens.shows("Enter begin", "of its base model where it")
        await screens.press("enter")
        await screens.shows("rows: held out by", "accuracy", "loss")
        await screens.press("escape", "M", "p")
        await screens.shows("asked.jsonl")
        await screens.press(*"asked", "enter")
        await screens.shows("Into", ".jsonl", "Enter begin")
        await screens.press("enter")
        await screens.shows("12 rows", "rows/s")
    [out] = [path for path in tmp_path.glob("asked.*.jsonl")]
    assert len(out.read_text().splitlines()) == 12 and "prediction" in json.loads(out.read_text().splitlines()[0])


@in_event_loop
async def test_a_model_is_downloaded_after_its_size_and_the_room_were_shown(llama_folder, tmp_path, monkeypatch):
    with serving(FakeHub(models={"org/tiny": llama_folder})) as hub:
        for name, value in environment_of(hub, tmp_path).items():
            if name.startswith(("HF_", "TUI")):
                monkeypatch.setenv(name, value)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        async with opened() as screens:
            await screens.press("d")
            await screens.shows("m a model", "d a data set")
            await screens.press("m", *"org/tiny", "enter")
            await screens.shows("org/tiny, revision main", "size", "are free there", "Enter do it")
            assert not list(tmp_path.glob("hf/**/*.safetensors"))
            await screens.press("enter")
            await screens.shows("org/tiny is in")
        assert list(tmp_path.glob("hf/**/*.safetensors"))


@in_event_loop
async def test_without_a_network_the_reason_is_a_sentence(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    async with opened((80, 24)) as screens:
        await screens.press("d", "d", *"org/rows", "enter")
        await screens.shows("org/rows could not be downloaded", "Enter again")


AXOLOTL = Path(__file__).parents[1] / "importing/configs/axolotl_full.yaml"


@in_event_loop
async def test_a_config_of_another_tool_is_shown_and_taken_as_one_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(AXOLOTL, tmp_path / "theirs.yaml")
    async with opened() as screens:
        before = screens.bench.document.own_values()
        await screens.press("2", "i")
        await screens.shows("theirs.yaml", "base_model")
        await screens.press("enter")
        text = await screens.shows("axolotl", "->", "Esc back")
        if "w without these keys" in text:
            await screens.press("w")
        await screens.shows("Enter take it into Config", "left out")
        await screens.press("enter")
        await screens.shows("settings of theirs.yaml", "u takes it back")
        assert screens.bench.document.own_values() != before
        await screens.press("u")
        assert screens.bench.document.own_values() == before


@in_event_loop
async def test_what_a_check_names_is_installed_from_the_checklist(monkeypatch):
    begun = []
    monkeypatch.setattr(
        "tui_trainer.launching.command_process.JsonProcess", lambda arguments, _: begun.append(arguments) or Told()
    )
    async with opened() as screens:
        await screens.press("3", "i")
        await screens.shows("this check names nothing to install")
        one = finding("four bits", "fail", 1, "no bitsandbytes here")
        verdict = replace(one.verdict, advice="install it: uv pip install bitsandbytes, then try again")
        screens.bench._checked([replace(one, verdict=verdict)])
        await screens.press("i")
        await screens.shows("Install bitsandbytes", "c cancel")
        assert begun == [["install", "bitsandbytes"]]
        # It goes on, and ends when the screens are left.
        await screens.press("escape", "q")
        await screens.shows("installing bitsandbytes goes on, and ends when the screens are left")


def test_what_is_installed_is_an_extra_or_a_library_with_its_versions_and_without_an_installer_a_command(monkeypatch):
    monkeypatch.setattr(installing.shutil, "which", lambda name: "/bin/uv")
    command = installing.installation(["bitsandbytes", "onnx"])
    assert command[:4] == ["uv", "pip", "install", "--python"] and any(
        "bitsandbytes" in one and ">=" in one for one in command
    )
    assert any(one.startswith("onnxruntime") for one in command)
    monkeypatch.setattr(installing.shutil, "which", lambda name: None)
    monkeypatch.setattr(installing.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="neither uv nor pip") as error:
        installing.installation(["wandb"])
    assert "-m pip install wandb" in error.value.problems[0].hint
    with pytest.raises(InputError, match="nothing to install by the name 'bitsandbite'"):
        installing.installation(["bitsandbite"])
