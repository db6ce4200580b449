"""When memory runs out during a run, the same batch is computed again in smaller passes, with the same result."""

from __future__ import annotations

import json
import signal
import weakref

import pytest
import torch
from safetensors.torch import load_file
from torch.optim import AdamW
from transformers import Adafactor

from tests.faults.kill_sweep import in_child, kill_at_step
from tests.programs import run_program
from tests.runs.journals import read_all
from tests.tiny_models import save_tiny_model
from tests.trained_runs import stopping_after
from tests.training.finished_runs import of_kind
from tui_trainer.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED
from tui_trainer.hardware.cgroup import MemoryLeft
from tui_trainer.hardware.out_of_memory import is_out_of_memory
from tui_trainer.launching.open_run import reopen_run
from tui_trainer.launching.prepare import read_plan
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.lines import plan_and_events as lines
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.reporting.page import write_report
from tui_trainer.runs.events import CheckpointSaved, EvalDone, MicroBatchReduced, RunFailed, RunProblem, StepDone
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.state import apply_events
from tui_trainer.tasks.seq2seq import TASK as SEQ2SEQ
from tui_trainer.training import checkpoint as checkpoint_tensors
from tui_trainer.training.checkpoint_folder import steps_saved
from tui_trainer.training.host_memory import HostMemoryWatch
from tui_trainer.training.session import Session
from tui_trainer.ui.watch import WatchedRun

GIB = 1 << 30
MICRO, PARTS = "training.per_device_train_batch_size", "training.gradient_accumulation_steps"
EVAL_MICRO = "evaluation.per_device_eval_batch_size"
CPU_ALLOCATOR = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "8589934592 bytes. Error code 12 (Cannot allocate memory)"
)
# With dropout, a repeated pass must draw the same random numbers.
WHOLE = {"model.scratch.attention_dropout": 0.3, MICRO: 4, "training.max_steps": 4}
MASTERS = {"model.dtype": "bfloat16", "training.mixed_precision": "bf16"}
WITH_AND_WITHOUT_MASTERS = pytest.mark.parametrize("changes", [{}, MASTERS], ids=["fp32 weights", "masters"])


def weights_of(folder, file="model.safetensors"):
    return (folder.model / file).read_bytes()


def last_state(folder):
    """Return the weights, masters and optimizer state of the last checkpoint."""
    path = folder.checkpoints / f"step-{steps_saved(folder.checkpoints)[0]}"
    return load_file(path / "model.safetensors") | load_file(path / "optimizer.safetensors")


def assert_equal_ends(folder, other):
    state, other_state = last_state(folder), last_state(other)
    assert state.keys() == other_state.keys()
    assert [name for name, tensor in state.items() if not tensor.equal(other_state[name])] == []
    assert weights_of(folder) == weights_of(other)


class Shortage:
    """Passes of more than `rows` rows do not fit in the steps `steps`; `left` are what failed passes computed."""

    def __init__(self) -> None:
        self.steps: set[int] = set()
        self.rows, self.width = 0, 10**9
        self.place, self.error = "forward", torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        self.step, self.passes = 0, 0
        self.left: list[weakref.ref] = []
        self.failed = 0

    def is_too_large(self, batch) -> bool:
        rows, width = batch.inputs["input_ids"].shape
        return self.step in self.steps and (rows > self.rows or width > self.width)

    def fails_backward(self, total, model):
        """At the embeddings, when most of the other weights have their gradients."""

        def fails(gradient):
            handle.remove()
            self.fail(total, gradient)

        handle = next(p for p in model.parameters() if p.requires_grad).register_hook(fails)
        return total

    def fail(self, *computed):
        self.failed += 1
        self.left += [weakref.ref(tensor) for tensor in computed]
        raise type(self.error)(*self.error.args)


@pytest.fixture
def shortage(monkeypatch):
    """The passes for which a run has no memory, as a test sets them."""
    found, plain_loss, plain_step = Shortage(), NextTokenLoss.__call__, Session._step

    def step(self, step):
        found.step, found.passes = step, 0
        return plain_step(self, step)

    def loss(self, batch):
        training = torch.is_grad_enabled()
        if training and found.failed and found.step in found.steps:
            assert not [left for left in found.left if left() is not None], "the failed attempt is still there"
        total = plain_loss(self, batch)
        if not (training and found.is_too_large(batch)):
            return total
        found.passes += 1
        if found.place == "second pass" and found.passes < 2:
            return total
        if found.place == "backward":
            return found.fails_backward(total * 1, self._model)
        found.fail(total)
        return None

    monkeypatch.setattr(Session, "_step", step)
    monkeypatch.setattr(NextTokenLoss, "__call__", loss)
    yield found
    found.steps = set()


def test_a_first_step_without_memory_ends_with_the_weights_of_a_run_with_smaller_passes(
    reference_run, tiny_run, shortage
):
    small = reference_run(WHOLE | {MICRO: 1})
    shortage.steps, shortage.rows = {1}, 1
    folder, outcome = tiny_run("failing", WHOLE)
    assert outcome.exit_code == EXIT_DONE, outcome
    assert shortage.failed == 2
    assert weights_of(folder) == weights_of(small)
    reduced = of_kind(folder, MicroBatchReduced)
    assert [(event.step, event.rows_before, event.rows, event.passes) for event in reduced] == [
        (1, 4, 2, 2),
        (1, 2, 1, 4),
    ]
    assert all(event.longest_row and event.peak_memory_bytes and event.free_memory_bytes for event in reduced)
    plan = read_plan(folder)
    assert (plan.per_device_train_batch_size.value, plan.gradient_accumulation_steps.value) == (1, 4)
    assert "out of memory at step 1" in plan.per_device_train_batch_size.reason
    steps, same = of_kind(folder, StepDone), of_kind(small, StepDone)
    assert [(one.loss_sum, one.lr, one.samples) for one in steps] == [
        (one.loss_sum, one.lr, one.samples) for one in same
    ]


CASES = {
    "accumulation": ({MICRO: 2}, 1),
    "a last part that is smaller": ({"training.effective_batch_size": 7, MICRO: 7}, 4),
    "batches made ahead": ({"dataloader.num_workers": 2}, 2),
    "Adafactor": ({"training.optim": "adafactor"}, 2),
    "sgd": ({"training.optim": "sgd", "training.gradient_checkpointing": "true"}, 2),
    "masters": (MASTERS | {MICRO: 2}, 1),
}


@pytest.mark.full
@pytest.mark.parametrize(
    ("case", "place"),
    zip(CASES, ("second pass", "backward", "forward", "backward", "backward", "second pass"), strict=True),
)
def test_a_repeated_step_gives_the_same_weights_wherever_it_failed(
    bf16_on_the_cpu, reference_run, tiny_run, shortage, case, place
):
    changes, rows = CASES[case]
    small = reference_run(WHOLE | changes | {MICRO: rows})
    shortage.steps, shortage.rows, shortage.place = {1}, rows, place
    folder, outcome = tiny_run("failing", WHOLE | changes)
    assert outcome.exit_code == EXIT_DONE, outcome
    assert_equal_ends(folder, small)
    assert shortage.failed == len(of_kind(folder, MicroBatchReduced)) >= 1


@pytest.fixture
def documents_run(tiny_run, tmp_path):
    """`documents_run(name, changes)`: a pretrained Llama on documents of a few lengths."""
    model = tmp_path / "llama"
    save_tiny_model(model, "llama")
    data = tmp_path / "documents.jsonl"
    rows = [{"text": " ".join(f"{n} sheep" for n in range(k, k + 2 + k % 7))} for k in range(40)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {
        "task.type": "causal_lm", "model.init": "pretrained", "model.model_name_or_path": model, "data.path": data,
        "data.max_length": 64, "training.effective_batch_size": 8, "training.max_steps": 4,
    }  # fmt: skip

    def run(name, changes):
        return tiny_run(name, settings | changes)

    return run


LORA = {"tuning.method": "lora", "tuning.lora_dropout": 0.3, "data.packing": "false"}


@pytest.mark.full
def test_lora_with_dropout_is_the_same_to_the_bit(documents_run, shortage):
    small, outcome = documents_run("small", LORA | {MICRO: 2})
    assert outcome.exit_code == EXIT_DONE, outcome
    shortage.steps, shortage.rows = {1}, 2
    folder, outcome = documents_run("failing", LORA | {MICRO: 8})
    assert outcome.exit_code == EXIT_DONE, outcome
    name = "adapter_model.safetensors"
    assert weights_of(folder, name) == weights_of(small, name)
    assert [event.rows for event in of_kind(folder, MicroBatchReduced)] == [4, 2]


PACKED = {"tuning.method": "full", "data.packing": "true", "data.max_length": 32}


@pytest.mark.full
def test_packed_rows_are_halved_to_the_bit_and_one_of_several_documents_is_made_narrower(documents_run, shortage):
    small, outcome = documents_run("small", PACKED | {MICRO: 1})
    assert outcome.exit_code == EXIT_DONE, outcome
    shortage.steps, shortage.rows = {1}, 1
    folder, outcome = documents_run("halved", PACKED | {MICRO: 8})
    assert outcome.exit_code == EXIT_DONE, outcome
    assert weights_of(folder) == weights_of(small)
    assert of_kind(folder, MicroBatchReduced)[-1].rows == 1

    shortage.steps, shortage.width = {2}, 20
    folder, outcome = documents_run("narrower", PACKED | {MICRO: 1})
    assert outcome.exit_code == EXIT_DONE, outcome
    (event,) = of_kind(folder, MicroBatchReduced)
    assert (event.rows_before, event.rows) == (1, 1) and event.passes > 1
    assert 0 < read_plan(folder).packed_width <= 20
    assert "1 row of 32 tokens x " in event.message
    for name, tensor in load_file(small.model / "model.safetensors").items():
        torch.testing.assert_close(load_file(folder.model / "model.safetensors")[name], tensor, atol=1e-5, rtol=1e-4)


# The 17th step is the last of an epoch, and has two rows.
LATE = WHOLE | {"training.max_steps": 20, "checkpoint.save_total_limit": 9}


def stop_at(monkeypatch, step):
    monkeypatch.setattr(Session, "take_step", stopping_after(step))


@pytest.mark.full
@WITH_AND_WITHOUT_MASTERS
def test_a_late_step_without_memory_continues_as_a_run_whose_plan_changed_there(
    tiny_run, shortage, monkeypatch, bf16_on_the_cpu, changes
):
    """Passes of another size sum in another order. So the weights equal to the bit those of a run whose plan was
    changed at this step, and not those of a run that began with the smaller passes."""
    with monkeypatch.context() as patch:
        stop_at(patch, 17)
        changed, outcome = tiny_run("changed", LATE | changes)
    assert outcome.exit_code == EXIT_STOPPED
    plan = json.loads(changed.plan.read_text())
    plan["per_device_train_batch_size"]["value"], plan["gradient_accumulation_steps"]["value"] = 2, 2
    changed.plan.write_text(json.dumps(plan))
    assert execute_run(reopen_run(changed)).exit_code == EXIT_DONE

    shortage.steps, shortage.rows = {18}, 2
    folder, outcome = tiny_run("failing", LATE | changes)
    assert outcome.exit_code == EXIT_DONE, outcome
    assert_equal_ends(folder, changed)
    assert any(name.endswith(".master") for name in last_state(folder)) == bool(changes)
    assert [event.step for event in of_kind(folder, MicroBatchReduced)] == [18]
    assert next((event.step, event.reason) for event in of_kind(folder, CheckpointSaved)) == (17, "out of memory")


@pytest.mark.full
def test_masters_after_a_step_without_memory_are_near_those_of_a_run_with_smaller_passes(
    tiny_run, shortage, bf16_on_the_cpu
):
    """Each pass rounds its gradients to bf16, by up to 2^-8 of their size, and AdamW's update is as exact as its
    gradients. The bound is four such roundings of the way that the weights have moved. (Measured: 1.5.)"""
    settings = WHOLE | MASTERS | {"model.scratch.attention_dropout": 0, "training.max_steps": 9}
    small, _ = tiny_run("small", settings | {MICRO: 2})
    first, _ = tiny_run("first", settings | {"training.learning_rate": 1e-12, "training.max_steps": 1})
    shortage.steps, shortage.rows = {4}, 2
    folder, outcome = tiny_run("failing", settings)
    assert outcome.exit_code == EXIT_DONE and shortage.failed == 1, outcome
    start, wanted, exported = last_state(first), last_state(small), load_file(folder.model / "model.safetensors")
    for name, master in last_state(folder).items():
        if name.endswith(".master"):
            assert (master - wanted[name]).norm() < 4 * 2**-8 * (wanted[name] - start[name]).norm(), name
            assert exported[name.removesuffix(".master")].equal(master.bfloat16()), name
    steps, same = of_kind(folder, StepDone), of_kind(small, StepDone)
    assert [(one.lr, one.samples) for one in steps] == [(one.lr, one.samples) for one in same]


@pytest.mark.full
@WITH_AND_WITHOUT_MASTERS
def test_a_killed_run_is_resumed_with_the_smaller_passes_to_the_bit(
    tiny_run, tmp_path, shortage, bf16_on_the_cpu, changes
):
    settings = WHOLE | changes | {"training.max_steps": 9}
    shortage.steps, shortage.rows = {4}, 2
    whole, _ = tiny_run("whole", settings)

    def train_and_die():
        kill_at_step(6)
        return tiny_run("killed", settings)[1].exit_code

    assert in_child(train_and_die) == -signal.SIGKILL
    folder = RunFolder(tmp_path / "runs" / "killed")
    assert steps_saved(folder.checkpoints) == [3], "saved when memory ran out"
    shortage.steps = set()
    assert execute_run(reopen_run(folder)).exit_code == EXIT_DONE
    assert_equal_ends(folder, whole)
    state = apply_events(read_all(folder.journal))
    assert (state.plan.per_device_train_batch_size, state.plan.gradient_accumulation_steps) == (2, 2)


def test_one_row_that_is_too_large_ends_the_run_with_its_name_and_a_checkpoint(tiny_run, shortage, monkeypatch):
    with monkeypatch.context() as patch:
        stop_at(patch, 5)
        stopped, _ = tiny_run("stopped", WHOLE | {"training.max_steps": 8})
    shortage.steps = {6}
    folder, outcome = tiny_run("failing", WHOLE | {"training.max_steps": 8})
    assert outcome.exit_code == EXIT_FAILED
    (failed,) = of_kind(folder, RunFailed)
    row = ("tokens: row ", "sheep.txt", "starting with '")
    for words in ("out of memory at step 6 with one row", *row, "step 5 is saved"):
        assert words in failed.message, failed.message
    assert "data.max_length = 8" in failed.message and "gradient_checkpointing" in failed.message
    assert "lora" not in failed.message and "packing" not in failed.message, "from scratch, and not packed"
    assert not (folder.logs / "error.txt").exists()
    assert [event.rows for event in of_kind(folder, MicroBatchReduced)] == [2, 1]
    assert steps_saved(folder.checkpoints) == [5]
    for name in ("model.safetensors", "optimizer.safetensors", "rng_state.safetensors"):
        saved, wanted = ((run.checkpoints / "step-5" / name).read_bytes() for run in (folder, stopped))
        assert saved == wanted, name


@pytest.mark.full
def test_memory_for_the_state_of_the_optimizer_runs_out_before_any_weight_has_changed(
    reference_run, tiny_run, monkeypatch
):
    small = reference_run(WHOLE | {MICRO: 2})
    begin, calls = AdamW._init_group, []  # torch._dynamo gives each class its own

    def failing(self, group, *arguments):
        calls.extend(group["params"][1:2])  # not those of a lone weight, with which the process warms up
        if len(calls) == 1:
            calls.append(1)
            self.state[group["params"][0]]["step"] = torch.tensor(0.0)
            raise CPU_ALLOCATOR
        return begin(self, group, *arguments)

    monkeypatch.setattr(AdamW, "_init_group", failing)
    folder, outcome = tiny_run("failing", WHOLE)
    assert outcome.exit_code == EXIT_DONE, outcome
    assert weights_of(folder) == weights_of(small)


@pytest.mark.full
@pytest.mark.parametrize("call", [2, 3], ids=["vectors of step 1", "matrices of step 2"])
def test_an_update_that_may_be_half_done_ends_the_run_and_saves_nothing(tiny_run, monkeypatch, call):
    begin, calls = AdamW._init_group, []

    def failing(self, group, *arguments):
        calls.extend(group["params"][1:2])
        if len(calls) == call:
            raise CPU_ALLOCATOR
        return begin(self, group, *arguments)

    monkeypatch.setattr(AdamW, "_init_group", failing)
    folder, outcome = tiny_run("failing", WHOLE | {"checkpoint.save_steps": 1})
    assert outcome.exit_code == EXIT_FAILED
    assert "some weights may have changed" in outcome.failure and "last checkpoint is kept" in outcome.failure
    assert steps_saved(folder.checkpoints) == ([1] if call > 2 else [])
    assert not (folder.logs / "error.txt").exists()


@pytest.mark.full
@pytest.mark.parametrize(("call", "exit_code"), [(1, EXIT_DONE), (2, EXIT_FAILED)], ids=["none moved", "one moved"])
def test_an_optimizer_that_updates_weight_by_weight_retries_before_the_first(
    reference_run, tiny_run, monkeypatch, call, exit_code
):
    settings = WHOLE | {"training.optim": "adafactor"}
    small = reference_run(settings | {MICRO: 2})
    plain, calls = Adafactor._get_options, []

    def failing(group, shape):
        calls.append(1)
        if len(calls) == call:
            raise CPU_ALLOCATOR
        return plain(group, shape)

    monkeypatch.setattr(Adafactor, "_get_options", staticmethod(failing))
    folder, outcome = tiny_run("failing", settings)
    assert outcome.exit_code == exit_code, outcome
    if exit_code == EXIT_DONE:
        assert weights_of(folder) == weights_of(small)


# Evaluation, texts, scores -------------------------------------------------------------------------------------------

EVALUATED = WHOLE | {"training.max_steps": 6, "evaluation.eval_steps": 2, EVAL_MICRO: 8}


@pytest.fixture
def no_memory_to_evaluate(monkeypatch):
    """`no_memory_to_evaluate(rows)`: passes of more rows do not fit."""
    plain_loss, limit, failed = NextTokenLoss.__call__, [10**9], []

    def loss(self, batch):
        total = plain_loss(self, batch)
        if not torch.is_grad_enabled() and batch.sample_count > limit[0]:
            failed.append(batch.sample_count)
            torch.rand(3)
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return total

    monkeypatch.setattr(NextTokenLoss, "__call__", loss)

    def set_limit(rows):
        limit[0] = rows
        return failed

    return set_limit


def evaluations(folder):
    return [(event.step, event.loss_sum, event.tokens, event.best) for event in of_kind(folder, EvalDone)]


def test_an_evaluation_is_repeated_in_smaller_passes(reference_run, tiny_run, no_memory_to_evaluate):
    small = reference_run(EVALUATED | {EVAL_MICRO: 2})
    failed = no_memory_to_evaluate(2)
    folder, outcome = tiny_run("failing", EVALUATED)
    assert outcome.exit_code == EXIT_DONE, outcome
    assert evaluations(folder) == evaluations(small) and len(evaluations(small)) == 3
    assert failed == [8, 4], "the smaller passes are kept"
    events = of_kind(folder, MicroBatchReduced)
    assert [(event.what, event.step, event.rows_before, event.rows) for event in events] == [
        ("evaluation", 2, 8, 4), ("evaluation", 2, 4, 2),
    ]  # fmt: skip
    assert read_plan(folder).per_device_eval_batch_size.value == 2
    assert apply_events(read_all(folder.journal)).plan.per_device_train_batch_size == 4
    assert weights_of(folder) == weights_of(small)


@pytest.mark.full
def test_an_evaluation_of_one_row_without_memory_is_given_up_and_reported_once(tiny_run, no_memory_to_evaluate):
    no_memory_to_evaluate(0)
    folder, outcome = tiny_run("failing", EVALUATED | {"evaluation.early_stopping_patience": 1})
    assert outcome.exit_code == EXIT_DONE, outcome
    (problem,) = [event for event in of_kind(folder, RunProblem) if event.kind == "not evaluated"]
    assert "one row" in problem.message and "data.max_length" in problem.hint
    assert evaluations(folder) == []
    assert [event.step for event in of_kind(folder, StepDone)] == [1, 2, 3, 4, 5, 6], "nobody stopped early"
    assert (folder.model / "model.safetensors").is_file()
    state = apply_events(read_all(folder.journal))
    assert state.status == "finished" and state.finished.eval_loss is None


@pytest.mark.full
def test_answers_that_cannot_be_written_leave_the_loss_and_no_best_evaluation(tiny_run, tmp_path, monkeypatch):
    data = tmp_path / "answers.jsonl"
    rows = [{"input": f"{n} and {n % 5}", "output": f"makes {n + n % 5}"} for n in range(40)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def fails(self, *_):
        raise CPU_ALLOCATOR

    monkeypatch.setattr(type(SEQ2SEQ), "answer_scores", fails)
    changes = {
        "task.type": "seq2seq", "model.init": "scratch", "model.scratch.vocab_size": 300, "data.path": data,
        "data.max_length": 24, "task.max_target_length": 12, "evaluation.generate_rows": 2, "evaluation.eval_steps": 2,
        "evaluation.metric_for_best_model": "rougeL", "evaluation.early_stopping_patience": 1,
        "training.max_steps": 6,
    }  # fmt: skip
    folder, outcome = tiny_run("answers", changes)
    assert outcome.exit_code == EXIT_DONE, outcome
    assert [(event.step, event.best) for event in of_kind(folder, EvalDone)] == [(2, False), (4, False), (6, False)]
    assert {event.kind for event in of_kind(folder, RunProblem)} == {"no scores"}
    assert [event.step for event in of_kind(folder, StepDone)][-1] == 6, "nobody stopped early"


# Saving ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_memory_to_save(monkeypatch):
    """`no_memory_to_save(times)`: the host has no room for the copies of the next `times` checkpoints."""
    plain, left = checkpoint_tensors._on_host, [0]

    def failing(tensors, names):
        if left[0]:
            left[0] -= 1
            raise MemoryError
        return plain(tensors, names)

    monkeypatch.setattr(checkpoint_tensors, "_on_host", failing)
    return lambda times: left.__setitem__(0, times)


@pytest.mark.full
def test_a_save_without_memory_is_tried_once_more_and_then_a_failed_save(reference_run, tiny_run, no_memory_to_save):
    whole = reference_run(WHOLE)
    no_memory_to_save(2)
    folder, outcome = tiny_run("failed", WHOLE | {"checkpoint.save_steps": 2})
    assert outcome.exit_code == EXIT_DONE
    (problem,) = of_kind(folder, RunProblem)
    assert (problem.kind, problem.step) == ("save failed", 2) and "not enough memory" in problem.message
    assert steps_saved(folder.checkpoints) == [4]
    assert weights_of(folder) == weights_of(whole)

    no_memory_to_save(1)
    folder, outcome = tiny_run("tried", WHOLE | {"checkpoint.save_steps": 2})
    assert outcome.exit_code == EXIT_DONE
    assert not of_kind(folder, RunProblem)
    assert [event.step for event in of_kind(folder, CheckpointSaved)] == [2, 4]
    assert weights_of(folder) == weights_of(whole)
    assert not [path for path in folder.checkpoints.iterdir() if path.name.startswith(".")]


# What users see ------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_lines_plan_screen_and_report_show_the_smaller_passes(tiny_run, shortage):
    shortage.steps, shortage.rows = {3}, 2
    folder, _ = tiny_run("failing", WHOLE)
    events = read_all(folder.journal)
    state = apply_events(events)
    (event,) = of_kind(folder, MicroBatchReduced)
    line = lines.event_line(event, state)
    assert ": 4 rows x 1 do not fit, continuing with 2 rows x 2; longest row 17 tokens, peak memory " in line
    assert (state.plan.per_device_train_batch_size, state.plan.gradient_accumulation_steps) == (2, 2)
    assert event in state.problems
    watched = WatchedRun(folder)
    watched.poll()
    assert (line, "warn") in watched.events
    write_report(folder)
    assert "4 rows x 1" in folder.report.read_text()


# The machine's memory -------------------------------------------------------------------------------------------------


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def warnings_for(bytes_left, *, total=16 * GIB, steps_each=10):
    """Return the warning at each reading, five seconds apart."""
    clock, readings = Clock(), iter(bytes_left)

    def read():
        left = next(readings)
        return MemoryLeft(left_bytes=left, total_bytes=total, where="the container", process_bytes=total - left)

    watch, warnings = HostMemoryWatch(read, clock), []
    for number in range(len(bytes_left)):
        warnings.append(watch.check_memory(number * steps_each))
        assert watch.check_memory(number * steps_each) == "", "not twice in five seconds"
        clock.seconds += 5.0
    return warnings


def test_memory_that_runs_out_is_reported_once_with_its_trend():
    warnings = [text for text in warnings_for([int((3.0 - 0.1 * n) * GIB) for n in range(15)]) if text]
    assert warnings[0].startswith(
        "memory is running out: 2.3 GiB of the 16.0 GiB of the container are left, falling by"
    )
    assert (
        "(10.2 MiB per step), and will be used up in 1 min 55 s" in warnings[0]
        and "more than 35.0 s ago" in warnings[0]
    )
    assert len(warnings) <= 2, "again only once half of that is gone as well"
    nearly_none = warnings_for([int(0.1 * GIB)] * 4)
    assert [bool(text) for text in nearly_none] == [True, False, False, False], "without a trend"


def test_memory_without_a_trend_to_zero_is_not_reported():
    rows = {
        "little and steady": [2.5] * 12,
        "much is left": [12 - 0.1 * n for n in range(20)],
        "one step down": [3.5] * 6 + [2.5] * 12,
        "up and down": [3.0 + 0.3 * (n % 2) for n in range(20)],
        "in hours": [3.0 - 0.0001 * n for n in range(20)],
        "grows": [2.0 + 0.05 * n for n in range(20)],
    }
    for name, lefts in rows.items():
        assert not any(warnings_for([int(left * GIB) for left in lefts])), name


def test_memory_that_was_freed_is_watched_again():
    fall = [int((2.4 - 0.1 * n) * GIB) for n in range(12)]
    once = sum(map(bool, warnings_for(fall)))
    assert sum(map(bool, warnings_for([*fall, *[12 * GIB] * 24, *fall]))) >= 2 * once > 0


@pytest.mark.full
def test_a_checkpoint_is_saved_before_memory_runs_out(tiny_run, monkeypatch):
    warnings = iter(["", "", "memory is running out: 1 GiB of the 16 GiB of the machine are left"])
    monkeypatch.setattr(HostMemoryWatch, "check_memory", lambda self, step: next(warnings, ""))
    folder, outcome = tiny_run("warned", WHOLE | {"training.max_steps": 6})
    assert outcome.exit_code == EXIT_DONE
    (problem,) = of_kind(folder, RunProblem)
    assert (problem.kind, problem.step) == ("host memory", 3) and "step 3 is saved" in problem.hint
    assert next((event.step, event.reason) for event in of_kind(folder, CheckpointSaved)) == (3, "memory runs out")


def test_errors_of_a_lack_of_memory_are_recognised():
    rows = [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (CPU_ALLOCATOR, True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported"), True),
        (RuntimeError("std::bad_alloc"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (OSError(28, "No space left on device"), False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED"), False),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (ValueError("the row is out of memory of the reader"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ]
    for error, wanted in rows:
        assert is_out_of_memory(error) == wanted, error


LIMITED = """
import resource
from tui_trainer.training.session import Session

init = Session.__init__

def init_and_limit(self, *arguments):
    init(self, *arguments)
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * resource.getpagesize() + {megabytes} * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

if {megabytes}:
    Session.__init__ = init_and_limit
"""


@pytest.mark.e2e
def test_a_real_limit_of_the_address_space_is_survived(tmp_path):
    """No error is injected: malloc itself fails."""

    def train(name, rows, megabytes):
        settings = {
            "output.runs_dir": tmp_path, "output.name": name, MICRO: rows, "training.effective_batch_size": 256,
            "training.max_steps": 3, "data.max_length": 128, "evaluation.max_eval_rows": 4, "logging.sample_steps": 0,
            "model.scratch.hidden_size": 64, "model.scratch.num_hidden_layers": 2,
            "model.scratch.num_attention_heads": 2,
        }  # fmt: skip
        assignments = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        command = ["--no-ui", "--profile", "quickstart", *assignments]
        done = run_program(command, prelude=LIMITED.format(megabytes=megabytes))
        assert done.returncode == EXIT_DONE, done.stdout[-3000:] + done.stderr[-3000:]
        return RunFolder(tmp_path / name), done.stdout

    # Not at the limit of a pass of 64 rows, which fits in one step and not in the next.
    folder, printed = train("limited", 256, 220)
    assert "out of memory: 256 rows x 1 do not fit, continuing with 128 rows x 2" in printed
    small, printed = train("small", of_kind(folder, MicroBatchReduced)[-1].rows, 0)
    assert "out of memory" not in printed and weights_of(folder) == weights_of(small)
