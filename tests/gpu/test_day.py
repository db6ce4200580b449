"""The pieces of the day with a card, without one: calls and their kills, limits, results, wheels, the report."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import psutil
import pytest

from tests.benchmarks import estimates, memory_grid_cases
from tests.gpu import day, experiments, keeper, report
from tests.gpu.experiments import EXPERIMENTS, Work
from tests.gpu.noted_tests import GROUPS, group_of
from tests.gpu.results import FILE, SKIPPED, Outcome, Results, append, read
from tests.gpu.trace import group_of as group_of_kernel
from tests.gpu.trace import group_table, timed_parts
from tests.gpu.wheels import Candidate, Group, closure, fitting, our_groups, selection
from tui_trainer.config.load import Request
from tui_trainer.launching.open_run import load_config

CARD = {"name": "NVIDIA H200", "memory.total": "143771", "driver_version": "580.1", "compute_cap": "9.0"}
FACTS = {"dry": False, "card": CARD, "date": "2026-11-25", "libraries": {"torch": "2.11.0", "peft": None}}


# A day of stand-ins: six experiments of three calls, each with a process in a session of its own that does not listen
# to SIGTERM, and three figures one after the other.
STAND_INS = """
import sys
from tests.gpu import day
from tests.gpu.experiments import Experiment

WORK = '''
import json, os, signal, subprocess, sys, time
sys.path.insert(0, ROOT)
from pathlib import Path
from tests.gpu.results import append
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True)
for number in range(3):
    append(Path(sys.argv[2]), {"name": sys.argv[1], "figures": {str(number): number}})
    time.sleep(0.02)
time.sleep(float(os.environ.get("STALL_SECONDS", 0)))
'''.replace("ROOT", repr(sys.path[0]))
day.EXPERIMENTS.clear()
day.EXPERIMENTS.update((f"number {n}", Experiment(call=1 + n // 2, carry_out=print, is_dry=True)) for n in range(6))
day.command_of = lambda name, results, *_, **__: [sys.executable, "-c", WORK, name, str(results)]
sys.exit(day.main(sys.argv[1:]))
"""


class StandInDay:
    """Calls of a day of stand-ins; every process of it is known by a mark in its environment."""

    def __init__(self, place: Path) -> None:
        self.results, self._place, self._mark = place / "out" / FILE, place, uuid.uuid4().hex

    def start(self, call: int | str, **more: str) -> subprocess.Popen[bytes]:
        words = ["--dry", "--run", str(call), "--carried", "carried", "--out", "out", "--work", "work"]
        env = {**os.environ, "PYTHONPATH": str(day.ROOT), "DAY_OF_A_TEST": self._mark, **more}
        code = f"import sys; sys.path.insert(0, {str(day.ROOT)!r}){STAND_INS}"
        return subprocess.Popen([sys.executable, "-c", code, *words], cwd=self._place, env=env, start_new_session=True,
                                stdout=subprocess.DEVNULL)  # fmt: skip

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.status() != "zombie" and process.environ().get("DAY_OF_A_TEST") == self._mark:
                    found.append(process)
        return found

    def wait_for_the_end_of_all(self) -> None:
        until = monotonic() + 120
        while (found := self.processes()) and monotonic() < until:
            sleep(0.02)
        assert not found

    def bytes(self) -> int:
        return self.results.stat().st_size if self.results.exists() else 0


@pytest.fixture
def stand_in_day(tmp_path) -> Iterator[StandInDay]:
    found = StandInDay(tmp_path)
    yield found
    for process in found.processes():
        with suppress(psutil.Error):
            process.kill()


@pytest.fixture(scope="module")
def whole_day(tmp_path_factory) -> StandInDay:
    """One that nothing disturbed."""
    found = StandInDay(tmp_path_factory.mktemp("whole"))
    assert found.start("all").wait() == 0
    assert {one.state for one in read(found.results).experiments.values()} == {"done"}
    return found


@pytest.mark.parametrize("killed", ["the call", "its group", "the keeper", "everything"])
def test_calls_that_are_killed_at_random_moments_lose_nothing_and_go_on(killed, stand_in_day, whole_day):
    """A moment is a number of bytes in the results, so that it lies within the work however slow the machine is."""
    draw, own = random.Random(killed), stand_in_day
    for call in (1, 2, 3):
        before = read(own.results)
        moment = own.bytes() + draw.randrange(whole_day.bytes() // 3)
        process = own.start(call)
        while process.poll() is None and own.bytes() <= moment:
            sleep(0.005)
        if killed == "its group":
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        elif killed == "the call":
            process.kill()
        else:
            for one in own.processes():
                with suppress(psutil.Error):
                    if killed == "everything" or "tests.gpu.keeper" in one.cmdline():
                        one.kill()
        process.wait()
        own.wait_for_the_end_of_all()
        found = read(own.results)
        # What was done before is as it was; what is done now is whole; the rest was begun, or was not.
        for name, outcome in found.experiments.items():
            earlier = before.experiments.get(name)
            assert earlier is None or earlier.state != "done" or outcome == earlier
            assert outcome.state in ("started", "interrupted", "done")
            assert outcome.state != "done" or outcome.figures == {"0": 0, "1": 1, "2": 2}
            # Only a call that goes on, or a keeper that was there already, can write that it was cut short.
            assert killed != "the keeper" or outcome.state != "started"
        left = [name for name in EXPERIMENTS_OF_STAND_INS if name not in found.experiments]
        cut = [name for name, one in found.experiments.items() if one.state in ("started", "interrupted")]
        assert order_of(found) == left + sorted(cut)
    assert own.start(3).wait() == 0
    ends = [json.loads(line) for line in own.results.read_text().splitlines()]
    assert [sum(end.get("name") == name and end.get("state") == "done" for end in ends) for name in
            EXPERIMENTS_OF_STAND_INS] == [1] * 6  # fmt: skip
    assert not own.processes()


@pytest.mark.parametrize("send", [os.kill, os.killpg])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_runs_when_a_call_ends_ends_at_once_and_is_cut_short(send, number, stand_in_day):
    own = stand_in_day
    process = own.start(1, STALL_SECONDS="600")
    while process.poll() is None and b'"2": 2' not in (own.results.read_bytes() if own.bytes() else b""):
        sleep(0.02)
    send(process.pid, number)
    process.wait()
    own.wait_for_the_end_of_all()
    found = read(own.results).experiments
    assert {name: (one.state, one.reason) for name, one in found.items()} == {
        "number 0": ("interrupted", "the call was stopped")
    }


EXPERIMENTS_OF_STAND_INS = [f"number {n}" for n in range(6)]


def order_of(results: Results) -> list[str]:
    """Of stand-ins, as the last call would try them."""
    state = {name: results.experiments.get(name, Outcome()).state for name in EXPERIMENTS_OF_STAND_INS}
    return sorted((name for name in state if state[name] != "done"), key=lambda name: day._ORDER[state[name]])


# With this, the limit of 600 s comes as soon as the experiment has written its numbers, however slow the machine is.
LIMIT_WHEN_AT_WORK = """
from pathlib import Path
from time import monotonic
keeper.monotonic = lambda: monotonic() + 600 * (Path("PLACE").exists() and bool(Path("PLACE").read_text()))
"""


def kept(code: str, place: Path, *more: str, before: str = "") -> Outcome:
    """How a keeper says that a program ended."""
    append(place / FILE, {"name": "x", "state": "started"})
    command = [sys.executable, "-c", f"from tests.gpu import keeper\n{before}\nkeeper.main()", "x", "--results",
               place / FILE, "--work", place / "work", "--limit", "600", "--parent", str(os.getpid()), *more,
               "--", sys.executable, "-uc", code]  # fmt: skip
    subprocess.run(command, cwd=day.ROOT, check=True)
    assert not (place / "work").exists()
    return read(place / FILE).experiments["x"]


def is_alive(pid: int) -> bool:
    with suppress(psutil.Error):
        return psutil.Process(pid).status() != "zombie"
    return False


# A program that does not listen to SIGTERM, with one in a session of its own; it writes their numbers.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
command = [sys.executable, "-c", "import time; time.sleep(600)"]
grandchild = subprocess.Popen(command, start_new_session=True)
print("at work")
open("PLACE", "w").write(f"{os.getpid()} {grandchild.pid}")
"""


@pytest.mark.parametrize("way, state, error", [
    ("", "done", []),
    ("time.sleep(600)", "timeout", ["at work"]),
    # A limit that is shorter than what it may take is that of the call: it has not failed.
    ("time.sleep(600)", "interrupted", []),
    ("sys.exit('it broke')", "failed", ["at work", "it broke"]),
    (f"print('a' * 999, 'no pytest', sep='\\n'); sys.exit({SKIPPED})", "skipped", []),
], ids=["done", "timeout", "interrupted", "failed", "skipped"])  # fmt: skip
def test_however_an_experiment_ends_all_that_it_started_ends_and_it_has_its_line(way, state, error, tmp_path):
    pids, more = tmp_path / "pids", ["--may-take", "1000"] if state == "interrupted" else []
    before = LIMIT_WHEN_AT_WORK.replace("PLACE", str(pids)) if "sleep" in way else ""
    found = kept(STUBBORN.replace("PLACE", str(pids)) + way, tmp_path, *more, before=before)
    assert (found.state, found.error) == (state, error)
    reasons = {"timeout": "not done in 600 s", "interrupted": "the call ended after 600 s of it",
               "failed": "exit code 1", "skipped": "no pytest"}  # fmt: skip
    assert found.reason == reasons.get(state, "")
    numbers = [int(word) for word in pids.read_text().split()]
    assert len(numbers) == 2
    assert not any(map(is_alive, numbers))


def test_the_error_is_the_end_of_what_was_printed(tmp_path):
    found = kept("print('a' * 9999, *range(20), sep='\\n'); raise SystemExit('it broke')", tmp_path)
    assert found.error == [*map(str, range(6, 20)), "it broke"]


@pytest.fixture
def ends(monkeypatch):
    """What each keeper leaves in `day.main`, without a card or a child; `done` unless an experiment is named."""
    states: dict[str, str] = {}
    monkeypatch.setattr(day, "card", lambda: CARD)
    monkeypatch.setattr(day, "install", lambda *_: {"installed": {}, "lacking": {}})
    monkeypatch.setattr(day, "find_spec", lambda name: name != "bitsandbytes")
    monkeypatch.setattr(keeper, "adopt_orphans", lambda: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    limits: dict[str, float] = {}

    class Keeper:
        returncode = 0

        def __init__(self, command, *, env, **_):
            self.name, results = command[3], command[command.index("--results") + 1]
            assert env["HF_HUB_OFFLINE"] == "1"
            limits[self.name] = float(command[command.index("--limit") + 1])
            if states.get(self.name) == "interrupted":
                for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):  # pressed twice, and more
                    signal.raise_signal(number)
            append(results, {"name": self.name, "state": states.get(self.name, "done"), "figures": {"n": 1}})

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def poll(self):
            return 0

        terminate = poll

    monkeypatch.setattr(day.subprocess, "Popen", Keeper)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield states, limits
    for number, handler in before.items():
        signal.signal(number, handler)


def of_calls(*calls: int) -> list[str]:
    named = [name for name, one in EXPERIMENTS.items() if one.call in calls]
    return [name for name in named if "bitsandbytes" not in EXPERIMENTS[name].requires]


def arguments(place: Path, call: int | str, *more: str) -> list[str]:
    return ["--run", str(call), "--carried", str(place / "gpu-day"), "--out", str(place / "out"), *more]


def test_a_call_goes_on_with_what_is_missing_and_what_failed_comes_last(ends, tmp_path, capsys):
    states, limits = ends
    states |= {"machine": "failed", "1.2b full": "timeout", "8b lora": "interrupted"}
    assert day.main(arguments(tmp_path, 1)) == 1
    assert list(limits) == of_calls(1)
    assert limits["machine"] == day.LIMIT_SECONDS
    limits.clear()
    assert day.main(arguments(tmp_path, 2)) == 130
    assert list(limits) == ["8b lora, liger", "8b lora"]
    limits.clear()
    states.clear()
    assert day.main(arguments(tmp_path, 3)) == 0
    first = [name for name in of_calls(2, 3) if name not in ("8b lora, liger", "8b lora")]
    assert list(limits) == [*first, "8b lora", "machine", "1.2b full"]
    assert read(tmp_path / "out" / FILE).experiments["8b qlora, liger"].reason == "bitsandbytes is not installed"
    limits.clear()
    assert day.main(arguments(tmp_path, "all")) == 0
    assert list(limits) == of_calls(4, 5)
    limits.clear()
    assert day.main(arguments(tmp_path, "all")) == 0
    assert not limits
    assert "8b qlora, liger: skipped" in capsys.readouterr().out


def test_results_that_were_carried_go_on_where_nothing_is_yet(ends, tmp_path):
    _, limits = ends
    assert day.main(arguments(tmp_path, 1)) == 0
    (tmp_path / "gpu-day").mkdir()
    (tmp_path / "out" / FILE).rename(tmp_path / "gpu-day" / FILE)
    limits.clear()
    assert day.main(arguments(tmp_path, 2)) == 0
    assert list(limits) == of_calls(2)
    assert len(read(tmp_path / "out" / FILE).machines) == 2


def test_nothing_begins_for_which_too_little_of_the_call_is_left(ends, tmp_path):
    _, limits = ends
    assert day.main(arguments(tmp_path, 1, "--minutes", "0.3")) == 1
    assert not limits
    assert day.main(arguments(tmp_path, 1, "--minutes", "1")) == 0
    assert max(limits.values()) <= 60


def test_results_of_a_card_and_of_a_dry_run_are_not_mixed(ends, tmp_path, capsys):
    assert day.main(arguments(tmp_path, 1)) == 0
    before = (tmp_path / "out" / FILE).read_bytes()
    assert day.main(arguments(tmp_path, 1, "--dry")) == 2
    assert "are of a card" in capsys.readouterr().err
    assert (tmp_path / "out" / FILE).read_bytes() == before


def test_without_a_card_only_a_dry_run_starts(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(day, "card", lambda: None)
    assert day.main(arguments(tmp_path, 1)) == 2
    assert "--dry" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("call", day.CALLS)
def test_a_call_is_described_with_what_is_to_be_carried(call, tmp_path, capsys):
    wheels_folder = tmp_path / "wheels"
    wheels_folder.mkdir()
    (wheels_folder / "one.whl").write_bytes(bytes(2_000_000))
    append(tmp_path / FILE, {"call": "1", "machine": FACTS})
    append(tmp_path / FILE, {"name": "machine", "state": "failed"})
    assert day.main(["--call", str(call), "--folder", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert f"--run {call} --carried {tmp_path} --out RESULTS" in text
    assert re.search(r"wheels +2\.0 MB", text)
    assert text.rstrip().endswith("again   machine (failed)")
    limit = int(re.search(r"timeout -s TERM (\d+) ", text)[1])
    assert 60 * day.CALL_MINUTES[call] < limit <= 570
    (wheels_folder / "two.whl").write_bytes(bytes(day.MOST_CARRIED_BYTES))
    assert day.main(["--call", str(call), "--folder", str(tmp_path)]) == 1


def test_the_calls_and_what_is_carried_are_within_what_a_server_is_lent_for():
    assert sum(day.CALL_MINUTES.values()) <= 45
    # bitsandbytes, the largest wheel, and those that runs need: 55 MB, as tests.gpu.wheels has it by default.
    assert day.sizes_to_carry(Path("gpu-day"))["this checkout"] + 55_000_000 < day.MOST_CARRIED_BYTES
    assert all(experiment.call in day.CALL_MINUTES for experiment in EXPERIMENTS.values())
    kept_files = [one.carry_out.keywords["trace"] for one in EXPERIMENTS.values()
                  if "trace" in getattr(one.carry_out, "keywords", {})]  # fmt: skip
    assert 0 < len(kept_files) < experiments.MOST_FILES
    assert all(re.fullmatch(r"[\w.-]+", name) for name in kept_files)


def work_in(place: Path, **more) -> Work:
    (place / "out").mkdir(exist_ok=True)
    (place / "work").mkdir(exist_ok=True)
    given = {"name": "x", "results": place / "out" / FILE, "folder": place / "work", "models": place, "dry": False}
    return Work(**given | more)


def test_a_file_beside_the_results_is_kept_where_it_can_be_brought_back(tmp_path, monkeypatch):
    monkeypatch.setattr(experiments, "MOST_FILE_BYTES", 10)
    work = work_in(tmp_path)
    (tmp_path / "small").write_bytes(bytes(10))
    (tmp_path / "large").write_bytes(bytes(11))
    for number in range(9):
        work.keep(tmp_path / "small", f"trace-{number}")
    work.keep(tmp_path / "large", "trace-0")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [FILE, *(f"trace-{number}" for number in range(experiments.MOST_FILES - 1))]
    assert "trace-0 of 0.0 MB" in read(work.results).experiments["x"].figures["left_behind"]


def test_lines_are_added_behind_a_torn_one_which_does_not_count(tmp_path):
    path = tmp_path / FILE
    append(path, {"call": "1", "machine": FACTS})
    for state in ("started", "failed", "started", "done"):
        append(path, {"name": "one", "state": state, "figures": {state: 1}})
    with path.open("a") as file:
        file.write('[1]\n{"name": 3}\n{"name": "two", "sta')
    append(path, {"name": "three", "state": "done", "seconds": "long", "figures": [1]})
    found = read(path).experiments
    assert {name: one.state for name, one in found.items()} == {"one": "done", "three": "done"}
    assert found["one"].figures == {"started": 1, "done": 1}


def test_the_card_is_read_from_nvidia_smi(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771, 580.1, 9.0, 700.00'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert day.card() == {**CARD, "power.limit": "700.00"}
    program.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    assert day.card() is None


def test_facts_that_differ_from_nvidia_smi_are_named():
    document = {
        "gpus": [{"name": "NVIDIA H200", "memory_bytes": 143771 * 2**20, "capability": [9, 1]}],
        "driver": {"version": "580.1"}, "problems": [],
    }  # fmt: skip
    assert experiments.beside_nvidia_smi(document, CARD)["different"] == ["compute_cap"]
    assert experiments.beside_nvidia_smi({**document, "gpus": []}, None)["different"] == []


def test_a_dry_run_has_one_experiment_of_each_kind_and_of_each_call():
    def kinds(chosen: list) -> set:
        return {getattr(one.carry_out, "func", one.carry_out).__name__ for one in chosen}

    dry = [one for one in EXPERIMENTS.values() if one.is_dry]
    assert kinds(dry) == kinds(list(EXPERIMENTS.values()))
    assert {one.call for one in dry} == set(day.CALLS)
    assert not any(one.requires for one in dry)


def test_every_setting_of_an_experiment_is_one_of_the_program():
    chosen = {name: one.settings for name, one in EXPERIMENTS.items() if one.settings}
    assert len(chosen) > 15
    for name, settings in chosen.items():
        pairs = tuple(f"{key.replace('__', '.')}={value}" for key, value in settings.items())
        config = load_config(Request(assignments=pairs, profile="finetune"), gpu="none").config
        for key, value in settings.items():
            room, _, setting = key.partition("__")
            assert str(getattr(getattr(config, room), setting)).lower() == str(value).lower(), name


def test_every_configuration_of_an_experiment_is_one_of_its_benchmark():
    found = {"memory": memory_grid_cases.CASES, "time": estimates.CASES}
    named = [name.split(": ") for name in EXPERIMENTS if name.startswith(("memory: ", "time: "))]
    assert {kind for kind, _ in named} == found.keys()
    for kind, case in named:
        assert sum(case in one.name for one in found[kind]) == 1, case


# Tests of the GPU


def test_each_gpu_test_is_in_one_group_and_what_is_compiled_comes_last():
    names = re.findall(r"^def (test_\w+)", (day.ROOT / "tests/gpu/test_on_a_gpu.py").read_text(), re.MULTILINE)
    groups = {name: group_of(f"tests/gpu/test_on_a_gpu.py::{name}[x]") for name in names}
    assert set(groups.values()) == set(GROUPS)
    assert group_of("tests/gpu/test_on_a_gpu.py::test_switches[{'training.torch_compile': 'true'}]") == "compile"
    asked = [name.removeprefix("tests: ") for name in EXPERIMENTS if name.startswith("tests: ")]
    assert sorted(asked) == sorted(GROUPS)
    assert asked[-1] == "compile"


GPU_TESTS = """
import os, pytest
from pathlib import Path
pytestmark = pytest.mark.gpu

def test_good(): pass
def test_bad(): assert 1 == 2
def test_left_out(): pytest.skip("no card")
def test_breaks_the_device(): raise RuntimeError("CUDA error: an illegal memory access was encountered")
def test_ends_the_process(): os.kill(os.getpid(), 9) if Path("PLACE").exists() else None
def test_after_all(): pass
"""


def test_each_gpu_test_has_its_line_at_once_and_a_later_call_tries_what_did_not_pass(tmp_path):
    work, ends = work_in(tmp_path), tmp_path / "ends"
    ends.touch()
    file = tmp_path / "test_some.py"
    file.write_text(GPU_TESTS.replace("PLACE", str(ends)))
    for call in (1, 2):
        append(work.results, {"call": str(call), "machine": FACTS})
        begun = len(work.results.read_text().splitlines())
        with pytest.raises(experiments.ExperimentFailed, match="test_breaks_the_device"):
            experiments.tests(work, "others", str(file))
        found = {name.rpartition("::")[2]: one for name, one in read(work.results).tests.items()}
        assert {name: one.state for name, one in found.items()} == {
            "test_good": "passed", "test_bad": "failed", "test_left_out": "skipped", "test_breaks_the_device": "failed",
            "test_ends_the_process": "failed" if call == 1 else "passed", "test_after_all": "passed",
        }  # fmt: skip
        assert found["test_bad"].reason.startswith("E ")
        assert call == 2 or found["test_ends_the_process"].reason == "the process ended with -9"
        lines = [json.loads(line) for line in work.results.read_text().splitlines()[begun:]]
        tried = [line["test"].rpartition("::")[2] for line in lines if line.get("state") == "started"]
        assert sorted(tried) == sorted(found) if call == 1 else tried == [
            "test_bad", "test_breaks_the_device", "test_ends_the_process"
        ]  # fmt: skip
        ends.unlink(missing_ok=True)


# Traces


@pytest.mark.parametrize("name, around, group", [
    ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", ["aten::mm"], "products"),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", ["aten::addmm"], "products"),
    ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64>>", ["aten::_flash_attention_forward"],
     "attention"),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", ["aten::_cudnn_attention_forward"],
     "attention"),
    ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80", ["aten::_efficient_attention_forward"], "attention"),
    # The fallback: products of all scores.
    ("ampere_bf16_s16816gemm_bf16_128x128", ["aten::bmm", "aten::_scaled_dot_product_attention_math"], "attention"),
    ("void at::native::vectorized_elementwise_kernel<4, MulFunctor>", ["aten::mul", "MulBackward0"], "elementwise"),
    ("_rms_norm_forward_kernel", ["LigerRMSNormFunction"], "elementwise"),
    ("triton_poi_fused__to_copy_mm_silu_0", ["CompiledFunction"], "elementwise"),
    ("void at::native::cunn_SoftMaxForward", ["aten::_log_softmax", "_ChunkedHeadLoss"], "loss"),
    ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16>", ["aten::mm", "_ChunkedHeadLoss"], "products"),
    ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>", ["Optimizer.step#AdamW.step"], "optimizer"),
    ("void at::native::vectorized_elementwise_kernel<4, clamp_functor>", ["aten::clamp_min_"], "elementwise"),
    ("Memcpy HtoD (Pinned -> Device)", ["aten::copy_"], "elementwise"),
])  # fmt: skip
def test_a_kernel_is_in_the_group_of_what_it_computes(name, around, group):
    assert group_of_kernel(name, around) == group


@dataclass
class Operation:
    """What `timed_parts` reads of an event of torch's profiler."""

    name: str
    cpu_parent: Operation | None = None
    kernels: Sequence[Operation] = ()
    duration: float = 0.0
    self_cpu_time_total: float = 0.0
    device_type: str = "DeviceType.CPU"


def test_a_kernel_stands_with_the_operations_around_it_and_once():
    outer = Operation("aten::linear", kernels=[Operation("aten::linear", duration=90.0)])
    inner = Operation("aten::mm", outer, [Operation("gemm", duration=7.0)], self_cpu_time_total=3.0)
    events = [outer, inner, Operation("gemm", device_type="DeviceType.CUDA")]
    assert list(timed_parts(events, on_card=True)) == [("gemm", ["aten::mm", "aten::linear"], 7.0)]
    assert list(timed_parts(events, on_card=False)) == [
        ("aten::linear", [], 0.0), ("aten::mm", ["aten::linear"], 3.0)
    ]  # fmt: skip


def test_groups_are_milliseconds_and_kernels_of_a_step():
    parts = [("gemm", ["aten::mm"], 3000.0), ("gemm", ["aten::mm"], 1000.0), ("flash_fwd", [], 500.0)]
    found = group_table(parts, steps=2)
    assert found["products"] == {"milliseconds": 2.0, "kernels": 1, "largest": {"gemm": 2.0}}
    assert found["attention"]["milliseconds"] == 0.25
    assert found["loss"] == {"milliseconds": 0, "kernels": 0, "largest": {}}


# Wheels


CANDIDATES = {
    "torch": Candidate("2.11.0", ("numpy", "nvidia-cublas; platform_system == 'Linux'", "colorama; os_name == 'nt'")),
    "nvidia-cublas": Candidate("13.1"),
    "numpy": Candidate("2.4"),
    "peft": Candidate("0.21", ("torch>=2", "accelerate>=0.21", "huggingface_hub>=1.31")),
    "accelerate": Candidate("1.15", ("tomli; python_version < '3.11'", "psutil")),
    "psutil": Candidate("7.2"),
    "huggingface-hub": Candidate("1.33"),
    "liger-kernel": Candidate("0.8", ("torch", "tests-extra; extra == 'dev'")),
    "bitsandbytes": Candidate("0.49", ("numpy", "torch")),
}


def test_only_what_is_missing_or_too_old_is_taken_with_what_it_requires():
    have = {"torch": "2.11.0", "numpy": "1.26", "huggingface-hub": "1.5"}
    found = closure(["peft>=0.18", "numpy>=1.26"], CANDIDATES, have, "3.12")
    assert found.taken == ["peft", "accelerate", "huggingface-hub", "psutil"]
    assert found.lacking == []
    assert closure(["peft>=0.30", "textual"], CANDIDATES, have, "3.12").lacking == ["peft>=0.30", "textual"]


def test_what_the_image_surely_has_is_never_fetched():
    groups = [Group("needed", ["peft", "numpy"]), Group("liger-kernel", ["liger-kernel"])]
    found = dict(selection(groups, ["torch==2.11.*"], CANDIDATES, "3.12"))
    assert found["needed"] == ["peft", "accelerate", "huggingface-hub", "psutil"]
    assert found["liger-kernel"] == ["liger-kernel"]
    assert found["what a leaner image lacks"] == found["what an older image lacks"] == []


def test_what_the_image_may_lack_or_have_too_old_is_brought_in_case():
    """transformers brings the hub's library, maybe too old for us, and that, in some versions, psutil."""
    brought = {
        **CANDIDATES, "transformers": Candidate("5.17", ("huggingface-hub>=1.5", "psutil; extra == 'dev'")),
        "huggingface-hub": Candidate("1.33", ("psutil",)),
    }  # fmt: skip
    groups = [Group("needed", ["peft", "psutil", "huggingface_hub>=1.31"])]
    found = dict(selection(groups, ["torch", "transformers"], brought, "3.12"))
    assert found["needed"] == ["peft", "accelerate"]
    assert found["what a leaner image lacks"] == ["psutil"]
    assert found["what an older image lacks"] == ["huggingface-hub"]
    found = dict(selection(groups, ["torch", "transformers", "huggingface_hub"], brought, "3.12"))
    assert found["what an older image lacks"] == []


def test_groups_fit_in_their_order_and_what_does_not_is_told():
    groups = [("needed", ["a", "b"]), ("large", ["c"]), ("small", ["d"])]
    names, left_out = fitting(groups, {"a": 30_000_000, "b": 5_000_000, "c": 40_000_000, "d": 1_000_000}, 60_000_000)
    assert names == ["a", "b", "d"]
    assert left_out == ["large: 40.0 MB more, 25.0 MB are left"]


def test_what_pyproject_requires_is_all_asked_for_once():
    names = [re.split(r"[<>=!~ \[]", text)[0].lower() for group in our_groups() for text in group.requirements]
    assert len(names) == len(set(names))
    assert {"torch", "textual", "pyarrow", "pytest", "liger-kernel", "bitsandbytes", "datasets"} <= set(names)
    # Without it two experiments and two groups of tests are skipped; datasets is read by nothing that the day runs.
    order = [group.name for group in our_groups()]
    assert order.index("bitsandbytes") < order.index("datasets")


# The report


RUN = {
    "tokens_per_second": 12345.6, "step_seconds": 0.25, "planned_step_seconds": 0.2, "peak_memory_bytes": 30 * 2**30,
    "planned_allocated_bytes": 33 * 2**30, "losses": [11.5, 10.0, 9.0], "problems": [], "device": "cuda",
}  # fmt: skip
TRACED = {
    "groups": {x: {"milliseconds": 10.0, "kernels": 7, "largest": {f"{x}_kernel": 9.0}} for x in report.GROUPS},
    "product_teraflops": 654.3, "device_busy_share": 0.97, "unexpected": ["losses/next_token.py __call__"],
}  # fmt: skip
RACE = {
    "contenders": {
        "ours": {"median_tokens_per_second": 61234.5, "peak_memory_bytes": 30 * 2**30},
        "trainer": {"median_tokens_per_second": 20000.0, "peak_memory_bytes": 0, "ours_times": 3.06},
    },
    "left_out": {"trl": "trl is not installed"},
}  # fmt: skip


def results_of(**figures) -> Results:
    """`lora_8b` stands for "8b lora", which a name of Python cannot be."""
    named = {"lora_8b": "8b lora", "race": "8b lora beside others", "memory": "memory: llama 6x256 4x256 full"}
    found = {named.get(name, name): Outcome(state="done", call=1, figures=one) for name, one in figures.items()}
    return Results(machines=[json.loads(json.dumps(FACTS))], experiments=found)


def test_the_report_has_the_card_the_day_and_the_figures_of_the_lines():
    text = report.report(results_of(
        lora_8b=RUN | TRACED, race=RACE, memory={"predicted_bytes": 2**30, "measured_bytes": 2**30},
        machine={"import_seconds": {"torch": 2.5}, "diagnose": {}, "nvidia_smi": CARD, "different": ["power.limit"]},
    ))  # fmt: skip
    assert "| experiment | NVIDIA H200 (143771 MiB, driver 580.1), torch 2.11.0, 2026-11-25 |" in text
    assert "12,346 tokens/s; step planned 0.2 s, measured 0.25 s (-20 %); memory planned 33.0 GiB, measured" in text
    assert "loss 11.5000 to 10.1667 (mean of the last 3 steps)" in text
    assert "waits that are not listed: losses/next\\_token.py \\_\\_call\\_\\_" in text
    assert "| 8b lora | 10.0 | 10.0 | 10.0 | 10.0 | 10.0 | 35 | 654 | 97 % | attention\\_kernel |" in text
    assert "trainer 20,000 real tokens/s (ours 3.06 times); trl left out: trl is not installed" in text
    assert "planned 1.0 GiB, measured 1.0 GiB (+0 %)" in text
    assert "different: power.limit" in text
    assert "- 1.2b full: not run" in text


def test_the_report_names_another_card_failures_and_what_was_measured_before_them():
    results = results_of(lora_8b=RUN)
    results.machines.append({**FACTS, "card": {**CARD, "name": "NVIDIA H100"}})
    results.experiments["8b lora"].call = 2
    failed = Outcome(state="failed", call=1, reason="exit code 1", error=["first", "E  assert 1 == 2"],
                     figures={"passed": 50, "failed": 1})  # fmt: skip
    results.experiments |= {"tests: resume": failed, "quickstart": Outcome(state="skipped", reason="nothing here")}
    results.tests = {"a.py::test_one": Outcome(state="failed", reason="E  assert 1 == 2"),
                     "a.py::test_two": Outcome(state="passed")}  # fmt: skip
    text = report.report(results)
    assert "| 8b lora (on NVIDIA H100 " in text
    assert "| tests: resume | 50 passed, 1 failed |" in text
    assert "- tests: resume: failed exit code 1: E assert 1 == 2" in text
    assert "- quickstart: skipped nothing here" in text
    assert "- a.py::test\\_one: failed E assert 1 == 2" in text
    assert "test\\_two" not in text


HOSTILE = "x | y\n| z\x1b[31m `rm` <script> [a](b)‮" + "w" * 5000


@pytest.mark.parametrize("figures", [
    {"contenders": {HOSTILE: {"median_tokens_per_second": 1}}, "left_out": {HOSTILE: HOSTILE}},
    {"attention": {HOSTILE: {"refused": HOSTILE}}}, {"left_behind": HOSTILE}, {"unexpected": [HOSTILE]},
    {**RUN, "problems": [HOSTILE]}, {**RUN, "step_seconds": float("nan")}, {**RUN, "losses": []},
    {"predicted_bytes": "1", "measured_bytes": True}, {"predicted_bytes": 1, "measured_bytes": 0},
    {"contenders": 3}, {"contenders": {"a": None}}, {"groups": {}},
], ids=lambda value: str(value)[:30].encode("unicode_escape").decode())  # fmt: skip
def test_hostile_figures_stay_in_their_cells(figures):
    results = results_of(lora_8b=figures)
    results.experiments["8b lora"].reason = HOSTILE
    results.machines[0] |= {"card": {"name": HOSTILE}, "date": [1]}
    text = report.report(results)
    for row in text.split("\n\n")[0].splitlines():
        assert row == "|---|---|" or len(re.findall(r"(?<!\\)\|", row)) == 3
        assert len(row) < 2000
        assert "nan" not in row
    assert "‮" not in text
    assert "\x1b" not in text
    assert "<script>" not in text.replace("\\<script\\>", "")


def test_figures_that_cannot_be_read_are_a_failure():
    text = report.report(results_of(memory={"predicted_bytes": 1}))
    assert "full: its figures cannot be read (KeyError: 'measured\\_bytes')" in text


GUIDE = f"before\n{report.BEGIN}\nnone yet\n{report.END}\nafter\n"


def test_only_figures_of_a_card_are_written_between_the_markers(tmp_path, capsys):
    guide, path = tmp_path / "gpu.md", tmp_path / FILE
    guide.write_text(GUIDE)
    append(path, {"call": "1", "machine": FACTS})
    append(path, {"name": "8b lora", "state": "done", "figures": RUN})
    for _ in range(2):
        assert report.main([str(tmp_path), "--write", str(guide)]) == 0
        text = guide.read_text()
        assert text.startswith(f"before\n{report.BEGIN}\n\n| experiment |")
        assert text.endswith(f"\n{report.END}\nafter\n")
        assert text.count("12,346 tokens/s") == 1 and "none yet" not in text
    append(path, {"call": "2", "machine": {**FACTS, "dry": True, "card": None}})
    assert report.main([str(tmp_path), "--write", str(guide)]) == 2
    assert guide.read_text() == text
    assert "figures of no card" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", report.BEGIN, GUIDE + GUIDE, f"{report.END}{report.BEGIN}"])
def test_a_file_without_the_two_markers_stays_as_it_is(text):
    with pytest.raises(ValueError, match="it needs the lines"):
        report.written(text, "table")


def test_the_guide_has_the_markers():
    text = (day.ROOT / "tui_trainer/guides/gpu.md").read_text(encoding="utf-8")
    assert "table" in report.written(text, "table")
