"""`tui-trainer rehearse`: failures of a run that are found before its start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.answered_here import answered_by, answered_here
from tests.trained_runs import SETTINGS, training_row, write_rows
from tui_trainer.cli import main
from tui_trainer.measure import rehearsal
from tui_trainer.training import components
from tui_trainer.training import rehearsal as parts
from tui_trainer.training.job import CHECKPOINT, EVALUATION, FINAL, LOADING, REHEARSAL_PARTS, SAMPLE, TYPICAL, WORST
from tui_trainer.units import MIB
from tui_trainer.worker import asking
from tui_trainer.worker.asking import WorkerFailed

LONG = 90


@pytest.fixture
def config(tmp_path) -> list[str]:
    """Words of a command for 60 short rows and one that is eight times as long."""
    rows = [training_row("causal_lm", n) for n in range(60)]
    rows[37] = {"text": " ".join(row["text"] for row in rows)}
    settings = {
        **SETTINGS, "task.type": "causal_lm", "data.max_length": LONG, "training.effective_batch_size": 8,
        "training.max_steps": 20, "logging.sample_steps": 10, "output.runs_dir": tmp_path / "runs",
        "data.packing": "false",
    }  # fmt: skip
    data = write_rows(tmp_path / "rows.jsonl", rows)
    return ["--data", str(data), *(part for key, value in settings.items() for part in ("--set", f"{key}={value}"))]


@pytest.fixture
def here(monkeypatch):
    """Rehearse in this process."""
    monkeypatch.setattr(rehearsal, "ask", answered_here)


def rehearsed(capsys, *arguments: str) -> tuple[int, dict]:
    capsys.readouterr()
    code = main(["rehearse", *arguments, "--gpu", "none", "--json"])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def without_memory_for(monkeypatch, rows: int, *, training: bool = True) -> None:
    """Make a pass of more rows run out of memory."""

    def checked(passes):
        for batch in passes:
            if batch.sample_count > rows:
                raise MemoryError("planted")
            yield batch

    step, evaluate = components.take_step, parts.evaluate
    if training:
        monkeypatch.setattr(
            components, "take_step", lambda fetch, *more, **named: step(lambda: list(checked(fetch())), *more, **named)
        )
    else:
        monkeypatch.setattr(parts, "evaluate", lambda components, passes: evaluate(components, checked(passes)))


def test_rehearsal_runs_every_part_of_a_run_and_leaves_nothing(config, here, capsys, tmp_path):
    code, found = rehearsed(capsys, *config)
    assert code == 0 and found["is_ready"] and not found["faults"]
    assert list(found["parts"]) == [LOADING, *REHEARSAL_PARTS]
    largest, evaluation = found["parts"][WORST], found["parts"][EVALUATION]
    # The one long row is in it, whichever step that is of.
    assert largest["longest"] > 3 * largest["median_length"] and largest["begins"]
    assert evaluation["rows"] >= 1 and evaluation["evaluation_seconds"] > 0
    assert found["parts"][CHECKPOINT]["bytes"] > found["parts"][FINAL]["bytes"] > 0
    assert found["step_seconds"] > 0 and found["run_seconds"][0] > 20 * found["step_seconds"]
    assert found["disk_bytes"] > found["parts"][CHECKPOINT]["bytes"] and found["parts"][SAMPLE]["sample_seconds"] > 0
    # The next plan knows what a step takes.
    capsys.readouterr()
    assert main(["plan", *config, "--gpu", "none"]) == 0
    assert "measured here" in capsys.readouterr().out
    # Nothing is left of it.
    assert not (tmp_path / "runs").exists() and not list(tmp_path.glob(".rehearsal-*"))


@pytest.mark.full
def test_out_of_memory_is_reported_with_a_micro_batch_that_works(config, here, capsys, monkeypatch):
    without_memory_for(monkeypatch, 2)
    code, found = rehearsed(capsys, *config)
    [fault] = found["faults"]
    assert code == 1 and fault["part"] == WORST
    assert fault["patch"] == {"training.per_device_train_batch_size": 2}
    # It went on with the smaller passes, so the rest is known as well.
    assert found["parts"][CHECKPOINT]["bytes"] and found["step_seconds"]
    remedy = [part for key, value in fault["patch"].items() for part in ("--set", f"{key}={json.dumps(value)}")]
    code, found = rehearsed(capsys, *config, *remedy)
    assert code == 0 and found["is_ready"] and found["parts"][WORST]["rows"] == 2


def test_smaller_micro_batch_keeps_the_effective_batch_size(config, capsys, monkeypatch):
    """The config sets both the micro-batch and the accumulation, so the remedy must change both."""
    asked = []

    def answers(asked_for):
        asked.append(asked_for["assignments"])
        yield {"part": LOADING, "seconds": 1.0}
        yield {"part": WORST}
        if len(asked) < 2:
            raise WorkerFailed("was killed", "killed, probably because memory ran out", is_killed=True)
        yield {"part": WORST, "seconds": 1.0, "peak_memory_bytes": 3 * MIB, "rows": 4, "longest": 9, "row": 1}

    monkeypatch.setattr(rehearsal, "ask", answered_by(answers))
    written = ["training.per_device_train_batch_size=8", "training.gradient_accumulation_steps=3"]
    _, found = rehearsed(capsys, *_without(config, "effective_batch_size"), "--set", written[0], "--set", written[1])
    patch = {
        "training.per_device_train_batch_size": 4, "training.gradient_accumulation_steps": "auto",
        "training.effective_batch_size": 24,
    }  # fmt: skip
    assert found["faults"][0]["patch"] == patch
    assert {f"{key}={json.dumps(value)}" for key, value in patch.items()} <= set(asked[1])
    assert not {written[0], written[1]} & set(asked[1])


def _without(arguments: list[str], name: str) -> list[str]:
    """Remove each `--set` whose setting has this name."""
    pairs = zip(arguments[::2], arguments[1::2], strict=True)
    return [part for pair in pairs if name not in pair[1] for part in pair]


@pytest.mark.full
def test_evaluation_that_runs_out_of_memory_is_found_before_the_first_step(config, here, capsys, monkeypatch):
    without_memory_for(monkeypatch, 1, training=False)
    code, found = rehearsed(capsys, *config)
    [fault] = found["faults"]
    assert code == 1 and fault["part"] == EVALUATION
    assert fault["patch"] == {"evaluation.per_device_eval_batch_size": 1}
    code, found = rehearsed(capsys, *config, "--set", "evaluation.per_device_eval_batch_size=1")
    assert code == 0 and found["is_ready"]


@pytest.mark.full
def test_row_that_is_too_long_is_tried_with_settings_that_take_less_memory(config, here, capsys, monkeypatch):
    plain = components.take_step

    def work(fetch, *more, **named):
        batches = fetch()
        if any(batch.inputs["input_ids"].shape[1] > LONG // 2 + 1 for batch in batches):
            raise MemoryError("planted")
        return plain(lambda: batches, *more, **named)

    monkeypatch.setattr(components, "take_step", work)
    code, found = rehearsed(capsys, *config)
    [fault] = found["faults"]
    assert code == 1 and fault["part"] == WORST
    # Checkpointing was the first try, and is kept: each rung stands on those before it.
    assert fault["patch"] == {"training.gradient_checkpointing": True, "data.max_length": LONG // 2}


def test_killed_process_is_tried_again_with_half_the_micro_batch(config, capsys, monkeypatch):
    asked = []

    def answers(asked_for):
        assignments = asked_for["assignments"]
        asked.append([one for one in assignments if "per_device" in one])
        yield {"part": LOADING}
        yield {"part": LOADING, "seconds": 1.0}
        yield {"part": WORST}
        if len(asked) < 3:
            raise WorkerFailed("was killed", "killed, probably because memory ran out", is_killed=True)
        yield {"part": WORST, "seconds": 1.0, "peak_memory_bytes": 3 * MIB, "rows": 2, "longest": 9, "row": 1}

    monkeypatch.setattr(rehearsal, "ask", answered_by(answers))
    code, found = rehearsed(capsys, *config)
    assert [one[-1:] for one in asked] == [[], ["training.per_device_train_batch_size=4"],
                                           ["training.per_device_train_batch_size=2"]]  # fmt: skip
    [fault] = found["faults"]
    assert code == 1 and fault["message"].startswith("killed") and list(fault["patch"].values()) == [2]
    assert found["peak_memory_bytes"] == 3 * MIB


@pytest.mark.full
def test_full_disk_is_reported_with_a_number_of_checkpoints_that_fits(config, here, capsys, monkeypatch):
    code, found = rehearsed(
        capsys, *config, "--set", "checkpoint.save_steps=2", "--set", "checkpoint.save_total_limit=5"
    )
    needed, one = found["disk_bytes"], found["parts"][CHECKPOINT]["bytes"]
    assert code == 0 and needed > 6 * one
    monkeypatch.setattr(rehearsal, "disk_free_bytes", lambda folder: needed - 2 * one + one // 2)
    code, found = rehearsed(
        capsys, *config, "--set", "checkpoint.save_steps=2", "--set", "checkpoint.save_total_limit=5"
    )
    [fault] = found["faults"]
    assert code == 1 and fault["part"] == "disk" and fault["patch"] == {"checkpoint.save_total_limit": 3}
    monkeypatch.setattr(rehearsal, "disk_free_bytes", lambda folder: 0)
    [fault] = rehearsed(capsys, *config)[1]["faults"]
    assert not fault["patch"] and "output.runs_dir" in fault["message"]


@pytest.mark.full
def test_printed_rehearsal_names_parts_failures_and_remedies(config, here, capsys, monkeypatch):
    assert main(["rehearse", *config, "--gpu", "none"]) == 0
    printed = capsys.readouterr().out
    for words in (*REHEARSAL_PARTS, "read back and verified", "nothing failed", "planned"):
        assert words in printed, words
    without_memory_for(monkeypatch, 2)
    assert main(["rehearse", *config, "--gpu", "none"]) == 1
    printed = capsys.readouterr().out
    assert "FAILED  largest micro-batch: out of memory with 8 rows per pass, but not with 2" in printed
    assert "training.per_device_train_batch_size = 2 works here" in printed
    assert main(["rehearse", "--set", "training.nothing=1"]) == 2
    assert "training.nothing" in capsys.readouterr().err


@pytest.mark.full
def test_rehearsal_finds_a_micro_batch_within_a_limited_address_space(config, capsys, monkeypatch):
    """No failure is planted: malloc itself refuses the memory for a pass of eight long rows."""
    monkeypatch.chdir(Path(__file__).parents[1])  # where the process finds its module
    monkeypatch.setattr(asking, "MODULE", "tests.limited_rehearsal")
    larger = {"model.scratch.hidden_size": 64, "model.scratch.num_hidden_layers": 4, "data.max_length": 600,
              "model.attn_implementation": "eager"}  # fmt: skip
    sizes = [part for key, value in larger.items() for part in ("--set", f"{key}={value}")]
    code, found = rehearsed(capsys, *config, *sizes)
    assert code == 1 and not found["is_ready"] and found["parts"][TYPICAL]["step_seconds"] > 0
    # What is left of the address space after it may be too little for the parts that follow.
    fault = found["faults"][0]
    # Planned for eight rows; one of those that are tried, in this process or a later one, fits.
    assert fault["part"] == WORST and fault["patch"]["training.per_device_train_batch_size"] in (1, 2, 4)
