"""`tui-trainer tune`: the largest micro-batch and the fastest settings, with made-up and with small real steps.

`tests/test_tune_effective.py` uses `arguments` and `settings`.
"""

from __future__ import annotations

import json
import random
import tomllib
from pathlib import Path

import pytest

from tests.answered_here import answered_by, answered_here
from tests.trained_runs import SETTINGS, training_row, write_rows
from tui_trainer.cli import main
from tui_trainer.config.load import Request
from tui_trainer.errors import RunError
from tui_trainer.launching.open_run import load_config, open_new, reopen_run
from tui_trainer.launching.prepare import estimated_plan, read_plan
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.measure import micro_batches, tuning, turns
from tui_trainer.measure.micro_batches import MicroBatches, next_rows, try_micro_batches
from tui_trainer.planning.batch_cut import even_micro_batches
from tui_trainer.planning.records import MICRO_BATCH, clear_records
from tui_trainer.training import components
from tui_trainer.training import rehearsal as worst_batch
from tui_trainer.units import MIB
from tui_trainer.worker.asking import WorkerFailed

EFFECTIVE = 8
MICRO = "training.per_device_train_batch_size"


@pytest.fixture
def settings(tmp_path) -> tuple[str, ...]:
    """40 short rows, and one that is several times as long."""
    rows = [training_row("causal_lm", n) for n in range(40)]
    rows[17] = {"text": " ".join(row["text"] for row in rows)}
    values = {
        **SETTINGS, "task.type": "causal_lm", "data.max_length": 90, "training.effective_batch_size": EFFECTIVE,
        "training.max_steps": 20, "output.runs_dir": tmp_path / "runs", "data.packing": "false",
        "data.group_by_length": "false", "data.path": write_rows(tmp_path / "rows.jsonl", rows),
    }  # fmt: skip
    return tuple(f"{key}={value}" for key, value in values.items())


def arguments(settings: tuple[str, ...]) -> list[str]:
    return [part for one in settings for part in ("--set", one)]


# The search for the largest micro-batch


def searched(candidates, survives) -> dict[int, bool]:
    tried: dict[int, bool] = {}
    while (rows := next_rows(candidates, tried)) is not None:
        assert rows not in tried
        tried[rows] = survives(rows)
    return tried


def test_doubling_and_bisection_find_what_an_exhaustive_search_finds(subtests):
    for rows in (1, 2, 3, 7, 12, 31, 32, 60, 128):
        with subtests.test(f"{rows} rows"):
            candidates = even_micro_batches(rows)
            assert candidates[0] == 1 and candidates[-1] == rows
            for limit in range(rows + 1):
                tried = searched(candidates, lambda size, limit=limit: size <= limit)
                largest = max((size for size in candidates if size <= limit), default=0)
                assert max((size for size, survived in tried.items() if survived), default=0) == largest
                # It never tries more than twice what survived before.
                for before, now in zip(tried, list(tried)[1:], strict=False):
                    assert now <= 2 * before


@pytest.fixture
def plan(settings):
    return estimated_plan(load_config(Request(assignments=settings), gpu="none"), gpu="none")


def tried_of(settings, plan, seconds=60.0, **more) -> MicroBatches:
    return try_micro_batches(
        Request(assignments=settings), plan, "none", seconds=seconds, notify=lambda sentence: None, **more
    )


def child_that(answers, monkeypatch) -> list[dict]:
    """Answer each question with the next list of reports, which may end with an exception. Return the questions."""
    asked: list[dict] = []
    waiting = iter(answers)

    def answers_to(question):
        asked.append(question)
        for told in next(waiting):
            if isinstance(told, BaseException):
                raise told
            yield told

    monkeypatch.setattr(micro_batches, "ask", answered_by(answers_to))
    return asked


def test_killed_process_counts_as_a_failure_of_its_last_try(settings, plan, monkeypatch):
    killed = WorkerFailed("was killed", "killed, probably because memory ran out", is_killed=True)
    begins = [{"trying": rows, "doing": "trying"} for rows in (4, 8)]
    first = [begins[0], {"rows": 4, "peak_memory_bytes": MIB}, begins[1], killed]
    asked = child_that([first, []], monkeypatch)
    found = tried_of(settings, plan, candidates=[4, 8])
    assert found.largest == 4 and found.tried[8].failure_words.startswith("killed") and not found.cut_short
    # All was known then: no second process.
    assert len(asked) == 1 and found.tried[4].peak_memory_bytes == MIB
    assert f"{MICRO}=1" in asked[0]["assignments"]


def test_process_that_cannot_start_is_an_error(settings, plan, monkeypatch):
    child_that([[WorkerFailed("ended", "ImportError: no torch")]], monkeypatch)
    with pytest.raises(RunError, match="no torch"):
        tried_of(settings, plan)


def test_search_keeps_its_results_at_the_time_limit_and_at_ctrl_c(settings, plan, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(turns, "monotonic", lambda: now[0])

    def slow():
        yield {"trying": 1, "doing": "trying"}
        yield {"rows": 1, "peak_memory_bytes": 5}
        yield {"trying": 2, "doing": "trying"}
        now[0] = 61.0
        raise WorkerFailed("ended with a signal")

    child_that([slow()], monkeypatch)
    found = tried_of(settings, plan)
    assert (
        found.cut_short == "the time limit of 1 min 00 s was reached"
        and list(found.tried) == [1]
        and found.largest == 1
    )
    now[0] = 0.0
    child_that([[{"rows": 1, "peak_memory_bytes": 5}, KeyboardInterrupt()]], monkeypatch)
    found = tried_of(settings, plan)
    assert (found.cut_short, found.largest) == ("interrupted", 1)


@pytest.fixture
def here(monkeypatch):
    """Try micro-batches in this process."""
    monkeypatch.setattr(micro_batches, "ask", answered_here)


def without_memory_for(monkeypatch, rows: int) -> None:
    """Make a pass of more rows run out of memory."""
    step = components.take_step

    def checked(fetch, *more, **named):
        window = fetch()
        if any(batch.sample_count > rows for batch in window):
            raise MemoryError("planted")
        return step(lambda: window, *more, **named)

    monkeypatch.setattr(components, "take_step", checked)


@pytest.mark.full
def test_real_search_finds_a_planted_limit(settings, plan, here, monkeypatch):
    limit = 3
    without_memory_for(monkeypatch, limit)
    found = tried_of(settings, plan)
    alone = {size: tried_of(settings, plan, candidates=[size]).tried[size] for size in even_micro_batches(EFFECTIVE)}
    exhaustive = max(size for size, one in alone.items() if not one.failure_words)
    assert found.largest == exhaustive == max(size for size in even_micro_batches(EFFECTIVE) if size <= limit)
    failed = [one for one in found.tried.values() if one.failure_words]
    assert all(one.rows > limit and one.failure_words.startswith("out of memory") for one in failed)
    assert failed
    assert not list(Path(plan.config.output.runs_dir).parent.glob(".tries-*"))


@pytest.mark.full
def test_failure_after_another_failure_is_tried_again_in_a_new_process(settings, plan, monkeypatch):
    """What the first failure leaves in the heap is too much for three rows, which alone survive."""
    leftovers: list[int] = []

    def in_a_new_process(*asked, **more):
        leftovers.clear()
        return answered_here(*asked, **more)

    monkeypatch.setattr(micro_batches, "ask", in_a_new_process)
    step = components.take_step

    def checked(fetch, *more, **named):
        window = fetch()
        if any(batch.sample_count > (2 if leftovers else 3) for batch in window):
            leftovers.append(1)
            raise MemoryError("planted")
        return step(lambda: window, *more, **named)

    monkeypatch.setattr(components, "take_step", checked)
    found = tried_of(settings, plan)
    assert found.largest == 3 and found.tried[4].failure_words


# The fastest settings


class Steps:
    """Made-up steps. `speeds` are factors of 1,000 tokens per second by a part of the patch, as text."""

    def __init__(self, monkeypatch, speeds=(), failing=(), losses=(), *, largest=EFFECTIVE, noise=0.002, turn=6.0):
        self.speeds, self.failing, self.losses = dict(speeds), dict(failing), dict(losses)
        self.asked: list[dict] = []
        self.largest, self.noise, self.turn, self.now = largest, noise, turn, 0.0
        self.draw, self.interrupt_at = random.Random(1), 0
        monkeypatch.setattr(tuning, "ask_for_steps", self.answer)
        monkeypatch.setattr(tuning, "try_micro_batches", self.micro_batches)
        monkeypatch.setattr(turns, "monotonic", lambda: self.now)

    def micro_batches(self, request, plan, gpu, *, seconds, notify, patch=None, candidates=(), timed=False):
        found = MicroBatches(step_rows=EFFECTIVE)
        for rows in candidates or even_micro_batches(EFFECTIVE):
            fails = rows > self.largest or any(self.matches(part, patch or {}) for part in self.failing)
            found.add(rows, failure_words="planted" if fails else "")
        return found

    @staticmethod
    def matches(part: str, patch: dict) -> bool:
        key, value = part.split("=")
        return any(one.endswith(key) and json.dumps(patch[one]) == value for one in patch)

    def answer(self, request, gpu, steps, patch, seconds):
        self.asked.append(dict(patch))
        self.now += self.turn
        if self.interrupt_at and len(self.asked) >= self.interrupt_at:
            raise KeyboardInterrupt
        for part, reason in self.failing.items():
            if self.matches(part, patch):
                raise WorkerFailed("ended", reason)
        speed = 1000.0
        for part, factor in self.speeds.items():
            if self.matches(part, patch):
                speed *= factor
        speed *= 1 + self.draw.uniform(-self.noise, self.noise)
        loss = 2.5 + sum(more for part, more in self.losses.items() if self.matches(part, patch))
        return {"step_seconds": 80 / speed, "samples_per_second": speed / 10, "tokens_per_second": speed,
                "peak_memory_bytes": 7 * MIB, "loss": loss, "problems": {}}  # fmt: skip


def tuned(settings, seconds=600.0) -> tuning.Tuning:
    return tuning.Tuning(
        request=Request(assignments=settings), gpu="none", seconds=seconds, notify=lambda sentence: None
    ).find()


def names_of(found: tuning.Tuning) -> dict[str, dict]:
    return {row["name"]: row for row in found.as_json()["variants"]}


def test_faster_settings_are_combined(settings, monkeypatch):
    Steps(monkeypatch, {"train_batch_size=4": 1.3, "train_batch_size=2": 0.7, "group_by_length=true": 1.5})
    found = tuned(settings)
    assert found.patch == {"data.group_by_length": True, MICRO: 4}
    assert found.speed_up == pytest.approx(1.95, rel=0.02)
    assert found.sentence.startswith("1.9") and "group_by_length = true" in found.sentence and not found.cut_short
    rows = names_of(found)
    # What is slower stands in the table: a micro-batch as well. Where half of the rows is slower, a quarter is left.
    assert rows["2 rows x 4"]["speed_up"] == pytest.approx(0.7, rel=0.02) and rows["2 rows x 4"]["turns"] == 1
    assert rows["group_by_length = true"]["turns"] >= 3
    Steps(monkeypatch, {"train_batch_size=4": 0.7})
    rows = names_of(tuned(settings))
    assert rows["2 rows x 4"]["turns"] == 0 and rows["2 rows x 4"]["reason"] == "skipped: 4 rows x 2 was not faster"
    Steps(monkeypatch, {"train_batch_size=8": 0.8})
    rows = names_of(tuned((*settings, f"{MICRO}=4")))
    # A larger one that is slower is seen.
    assert rows["8 rows x 1"]["speed_up"] == pytest.approx(0.8, rel=0.02)


@pytest.mark.full
def test_differences_within_the_noise_change_nothing(settings, monkeypatch):
    steps = Steps(monkeypatch, noise=0.05)
    found = tuned(settings)
    assert found.patch == {} and found.sentence == tuning.DEFAULT_IS_BEST
    # What looked faster once was measured again.
    assert len(steps.asked) > len({json.dumps(patch) for patch in steps.asked}) + 4


@pytest.mark.full
def test_settings_that_fail_or_learn_worse_are_shown_and_not_chosen(settings, monkeypatch):
    failing = {"train_batch_size=4": "out of memory: 4 rows x 2 do not fit", "cpu_threads=1": "planted"}
    speeds = {
        "train_batch_size=4": 9,
        "cpu_threads=1": 9,
        'attn_implementation="eager"': 2,
        'mixed_precision="bf16"': 3,
    }
    Steps(monkeypatch, speeds, failing, {'attn_implementation="eager"': 0.2})
    found = tuned(settings)
    assert found.patch == {} and found.sentence == tuning.DEFAULT_IS_BEST
    rows = names_of(found)
    assert rows["4 rows x 2"]["reason"].startswith("out of memory") and rows["4 rows x 2"]["turns"] == 0
    eager = rows['attn_implementation = "eager"']
    assert "its loss is 2.700 instead of 2.500" in eager["reason"] and eager["turns"] > 1
    assert rows["current settings, another seed"]["turns"] == 1
    shown = rows['mixed_precision = "bf16"']
    assert shown["reason"] and (shown["turns"] == 0 or "the plan chooses fp32" in shown["reason"])


@pytest.mark.full
def test_compiler_that_costs_more_than_it_saves_is_not_chosen(settings, monkeypatch):
    steps = Steps(monkeypatch, {"torch_compile=true": 2})
    plain = steps.answer

    def answer(request, gpu, count, patch, seconds):
        steps.now += 20 if patch.get("training.torch_compile") else 0
        return plain(request, gpu, count, patch, seconds)

    monkeypatch.setattr(tuning, "ask_for_steps", answer)
    monkeypatch.setattr("tui_trainer.measure.tuning.lack_of_compiler", lambda *_: "")
    found = tuned(settings, seconds=3000)
    assert found.patch == {} and "the start takes 20" in names_of(found)["torch_compile = true"]["reason"]
    found = tuned((*settings, "training.max_steps=100000"), seconds=3000)
    assert found.patch == {"training.torch_compile": True}


@pytest.mark.full
def test_micro_batch_that_runs_out_of_memory_is_replaced(settings, monkeypatch):
    Steps(monkeypatch, largest=2)
    found = tuned(settings)
    assert found.patch == {MICRO: 2} and found.sentence.startswith("the current settings do not fit in memory")
    rows = names_of(found)
    assert rows["current settings"]["turns"] == 0 and "out of memory" in rows["current settings"]["reason"]
    assert rows["3 rows x 3"]["reason"] == "planted"
    Steps(monkeypatch, largest=0)
    with pytest.raises(RunError, match="not even the smallest micro-batch fits in memory: planted"):
        tuned(settings)


@pytest.mark.full
def test_gradient_accumulation_of_the_config_is_replaced_by_the_effective_batch_size(settings, monkeypatch):
    own = tuple(one for one in settings if "effective" not in one)
    Steps(monkeypatch, {"train_batch_size=4": 1.3})
    written = (f"{MICRO}=2", "training.gradient_accumulation_steps=4")
    found = tuned((*own, *written))
    assert found.patch == {
        MICRO: 4, "training.gradient_accumulation_steps": "auto", "training.effective_batch_size": 8
    }  # fmt: skip


@pytest.mark.full
def test_time_limit_is_kept_and_one_turn_alone_decides_nothing(settings, monkeypatch):
    steps = Steps(monkeypatch, {"train_batch_size=4": 1.2}, turn=10)
    found = tuned(settings, seconds=100)
    assert steps.now <= 100 and found.cut_short == "the time limit of 1 min 40 s was reached"
    assert any(row["reason"].startswith("not measured") for row in names_of(found).values())
    # Too little for a pair: nothing is taken that one turn alone speaks for.
    steps = Steps(monkeypatch, {"train_batch_size=4": 1.2}, turn=10)
    found = tuned(settings, seconds=30)
    assert found.patch == {} and steps.now <= 30


@pytest.mark.full
@pytest.mark.parametrize("at", [1, 4, -1])
def test_ctrl_c_ends_with_the_results_so_far(settings, monkeypatch, capsys, at, tmp_path):
    speeds = {"group_by_length=true": 1.5, "train_batch_size=4": 1.3}
    whole = Steps(monkeypatch, speeds)
    patch = tuned(settings).patch
    steps = Steps(monkeypatch, speeds)
    steps.interrupt_at = at % (len(whole.asked) + 1)
    out = tmp_path / "out.toml"
    more = ["--minutes", "10", "--json", "--write", str(out)]
    assert main(["tune", *arguments(settings), "--gpu", "none", *more]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["cut_short"] == "interrupted" and len(steps.asked) == steps.interrupt_at
    # At its last turn, of the comparison of all with the config as it is, both were taken.
    assert found["patch"] == (patch if at < 0 else {}) and len(patch) == 2 and out.is_file()


def test_command_prints_a_table_and_writes_the_config(settings, monkeypatch, capsys, tmp_path):
    Steps(monkeypatch, {"group_by_length=true": 1.5}, largest=4)
    out = tmp_path / "out.toml"
    assert main(["tune", *arguments(settings), "--gpu", "none", "--set", f"{MICRO}=4", "--write", str(out)]) == 0
    printed = capsys.readouterr()
    assert "largest micro-batch: 4 of 8 rows; 8 failed" in printed.out and "tokens/s" in printed.out
    assert "8 rows x 1: planted" in printed.out and printed.out.splitlines()[-1].startswith("1.5")
    assert "measuring group_by_length = true" in printed.err
    assert tomllib.loads(out.read_text())["data"]["group_by_length"] is True
    plan = estimated_plan(load_config(Request(config_file=out), gpu="none"), gpu="none")
    assert plan.effective_batch_size.value == EFFECTIVE and plan.per_device_train_batch_size.value == 4


def test_bad_arguments_of_tune_are_refused_before_measuring(settings, monkeypatch, capsys, tmp_path):
    steps = Steps(monkeypatch)
    there = tmp_path / "there.toml"
    there.write_text("")
    for wrong, words in (
        (["--write", str(there)], "exists"),
        (["--write", str(tmp_path / "out.json")], "write --write out.json.toml"),
        (["--minutes", "0"], "minutes"),
        (["--set", "training.nothing=1"], "training.nothing"),
        (["--set", "data.path=nowhere.jsonl"], "nowhere.jsonl"),
        (["--profile", "nothing"], "nothing"),
    ):
        assert main(["tune", *arguments(settings), "--gpu", "none", *wrong]) == 2
        printed = capsys.readouterr()
        assert words in printed.err and not printed.out and len(printed.err.splitlines()) == 1, printed
    assert not steps.asked and there.read_text() == ""


@pytest.mark.full
def test_json_holds_the_patch_and_all_measurements(settings, monkeypatch, capsys):
    Steps(monkeypatch, {"group_by_length=true": 1.5})
    assert main(["tune", *arguments(settings), "--gpu", "none", "--json"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["patch"] == {"data.group_by_length": True} and found["speed_up"] == pytest.approx(1.5, rel=0.02)
    assert found["largest_micro_batch"] == found["effective_batch_size"] == EFFECTIVE and found["pairs"] >= 2
    assert [one["rows"] for one in found["micro_batches"]] == even_micro_batches(EFFECTIVE)
    assert {"name", "reason", "turns", "step_seconds", "tokens_per_second", "peak_memory_bytes", "loss", "speed_up",
            "settings"} <= set(found["variants"][0])  # fmt: skip


# per_device_train_batch_size = "tune"


@pytest.mark.full
def test_plan_announces_the_measurement_and_then_names_its_result(settings, here, monkeypatch, tmp_path):
    own = (*settings, f"{MICRO}=tune", "output.name=first")
    before = estimated_plan(load_config(Request(assignments=own), gpu="none"), gpu="none")
    assert "the fastest micro-batch is measured before training" in before.per_device_train_batch_size.reason
    assert before.untuned_key and before.per_device_train_batch_size.value == EFFECTIVE
    monkeypatch.setattr(worst_batch, "perf_counter", iter(range(10**6)).__next__)
    without_memory_for(monkeypatch, 4)
    run = open_new(load_config(Request(assignments=own), gpu="none"), gpu="none")
    assert execute_run(run).exit_code == 0
    plan = read_plan(run.folder)
    # All steps take one second on this clock: of equally fast ones it is the largest.
    assert (plan.per_device_train_batch_size.value, plan.gradient_accumulation_steps.value) == (4, 2)
    assert (
        plan.per_device_train_batch_size.reason
        == "measured: 4 rows x 2 at 1.0 s/step, 2 rows x 4 at 1.0 s, 1 row x 8 at 1.0 s"
    )
    assert plan.effective_batch_size.value == EFFECTIVE and not plan.untuned_key
    # From now on it is known, and nothing is measured again.
    monkeypatch.setattr(micro_batches, "ask", None)
    again = estimated_plan(load_config(Request(assignments=own), gpu="none"), gpu="none")
    assert again.per_device_train_batch_size == plan.per_device_train_batch_size
    second = open_new(load_config(Request(assignments=(*own, "output.name=second")), gpu="none"), gpu="none")
    assert execute_run(second).exit_code == 0
    assert read_plan(second.folder).per_device_train_batch_size.value == 4
    # A resumed run keeps its own, although the record is gone.
    assert clear_records([MICRO_BATCH]) == 1
    assert execute_run(reopen_run(run.folder)).exit_code == 0
    assert read_plan(run.folder).per_device_train_batch_size == plan.per_device_train_batch_size
    # Another shape of step is another matter.
    other = estimated_plan(load_config(Request(assignments=(*own, "data.max_length=32")), gpu="none"), gpu="none")
    assert other.untuned_key


@pytest.mark.full
def test_run_without_a_working_micro_batch_does_not_start(settings, here, monkeypatch):
    without_memory_for(monkeypatch, 0)
    run = open_new(load_config(Request(assignments=(*settings, f"{MICRO}=tune")), gpu="none"), gpu="none")
    ended = execute_run(run)
    assert ended.exit_code == 1 and "no micro-batch could be measured: out of memory" in ended.failure
    assert "tui-trainer rehearse" in ended.failure


def test_tuned_micro_batch_contradicts_a_number_for_accumulation(settings, capsys):
    both = [*arguments(settings), "--set", f"{MICRO}=tune", "--set", "training.gradient_accumulation_steps=2"]
    assert main(["plan", *both, "--gpu", "none"]) == 2
    assert "gradient_accumulation_steps: is 2" in capsys.readouterr().err


@pytest.mark.full
def test_tune_measures_in_processes_of_its_own(settings, capsys, monkeypatch):
    # One alternative, and no limit of time that a busy machine could reach.
    every = tuning.alternatives
    monkeypatch.setattr(tuning, "alternatives", lambda *given: list(every(*given))[:1])
    assert main(["tune", *arguments(settings), "--gpu", "none", "--minutes", "20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["largest_micro_batch"] == EFFECTIVE
    measured = [row for row in found["variants"] if row["turns"]]
    assert len(measured) > 1 and all(row["loss"] > 0 and row["tokens_per_second"] > 0 for row in measured)
