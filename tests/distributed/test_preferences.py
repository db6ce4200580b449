"""Preferences are learnt the same packed, padded, one by one, in halved passes and in two processes.

`preference` has a loss of two parts, and `kto` a mean over the effective batch. Both compute their reference first.
"""

from __future__ import annotations

import json
import math
import shutil
from importlib.util import find_spec

import pytest
import torch

from tests.compilations import counted_compilations
from tests.distributed.outcomes import events, from_model, same, weights
from tests.tiny_models import save_tiny_model
from tests.trained_runs import ANIMALS, SETTINGS, write_rows
from tui_trainer.cli import main
from tui_trainer.config.load import Request
from tui_trainer.exporting.measured import measure
from tui_trainer.launching.open_run import load_config, open_new, reopen_run
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.launching.preview import NO_SIGNS, make_preview, sample_lines
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.losses.preference import TwoDocumentsLoss
from tui_trainer.runs import controls
from tui_trainer.runs.events import EvalDone, MicroBatchReduced, Progress, RunProblem, StepDone
from tui_trainer.training import components as components_module
from tui_trainer.training import row_values

STEPS = 5
PACKED = {"data.packing": "true"}
PADDED = {"data.packing": "false"}
UNEVEN = {"training.effective_batch_size": 7}
PAIRS = {"task.type": "preference", "task.sft_weight": 0.5}
MARKED = {"task.type": "kto", "task.undesirable_weight": 0.7}
TASKS = pytest.mark.parametrize("task", [PAIRS, MARKED], ids=["preference", "kto"])


@pytest.fixture
def request_of(tmp_path):
    """`request_of(name, changes)`: a run of five steps on pairs or marked answers of uneven lengths."""
    pairs, marked = [], []
    for n in range(30):
        one, other = ANIMALS[n % 4], ANIMALS[(n + 1 + n % 2) % 4]
        prompt = {"prompt": f"The {one} number {n}"}
        good, bad = f"{one} {'runs ' * (n % 5)}home", f"{other} {'sleeps ' * (n % 3)}"
        pairs.append({**prompt, "chosen": good, "rejected": bad})
        # Most answers are desirable, so that answers to other prompts become likelier as well: KL is above 0.
        marked.append({**prompt, "completion": good if n % 4 else bad, "label": n % 4 > 0})
    paths = {
        name: write_rows(tmp_path / f"{name}.jsonl", rows) for name, rows in (("preference", pairs), ("kto", marked))
    }

    def make(name, changes):
        settings = SETTINGS | {
            "data.max_length": 64,
            "training.max_steps": STEPS,
            "training.per_device_train_batch_size": 4,
            "training.adam_epsilon": 1e-3,
            "evaluation.eval_steps": 2,
            "output.runs_dir": tmp_path / "runs",
            "output.name": name,
        }
        assignments = tuple(f"{key}={value}" for key, value in (settings | changes).items())
        return Request(assignments=assignments, shortcuts={"data.path": str(paths[changes["task.type"]])})

    return make


@pytest.fixture
def open_run(request_of):
    """The same, not begun."""
    return lambda name, changes: open_new(load_config(request_of(name, changes)))


@pytest.fixture
def train(open_run):
    def run(name, changes):
        opened = open_run(name, changes)
        outcome = execute_run(opened)
        assert outcome.exit_code == 0, (outcome, *(path.read_text() for path in opened.folder.logs.glob("rank-*.txt")))
        return opened.folder

    return run


@TASKS
def test_a_preview_shows_both_documents_of_each_row_and_the_plan_counts_them(request_of, subtests, task):
    for layout in (PACKED, PADDED):
        with subtests.test(str(layout)):
            loaded = load_config(request_of("shown", layout | task | {"data.max_length": 40}))
            preview, plan = make_preview(loaded, 50, lambda *_: None), estimated_plan(loaded)
            shown = {(one.number, one.part): one for sample in preview.samples for one in sample.documents}
            assert sorted(shown) == [(number, part) for number in range(1, 23) for part in (1, 2)]
            assert sum(one.trained_tokens for one in shown.values()) == preview.counts.train_labels
            for number in range(1, 23):
                documents = [shown[number, part].pieces for part in (1, 2)]
                prompts = ["".join(piece.text for piece in pieces if not piece.trained) for pieces in documents]
                answers = ["".join(piece.text for piece in pieces if piece.trained) for pieces in documents]
                assert prompts[0] == prompts[1] and "number" in prompts[0] and answers[0] != answers[1]
            longest = preview.counts.longest_row
            assert 20 < longest <= 40 and preview.counts.row_documents == 2
            # Packed, both documents of a row lie in one row of the batch.
            assert plan.longest_row == (2 * longest if layout is PACKED else longest)
            assert plan.packing.value == (layout is PACKED)
            assert max(sample.tokens + sample.padding for sample in preview.samples) - 1 <= plan.longest_row
            assert 0 < preview.padding.grouped < preview.padding.padded and 0 < preview.padding.packed < 1
            lines = [text for line in sample_lines(preview.samples[0], 1, 1, NO_SIGNS, 80) for text, _ in line]
            assert any("document 1 of this row" in line for line in lines)


def check_equal(mine, theirs, *, places=1e-6):
    steps, other = events(mine, StepDone), events(theirs, StepDone)
    assert len(steps) == len(other) == STEPS
    for one, two in zip(steps, other, strict=True):
        assert (one.tokens, one.input_tokens, one.samples, one.counts) == (
            two.tokens, two.input_tokens, two.samples, two.counts,
        )  # fmt: skip
        assert two.loss_sum == pytest.approx(one.loss_sum, rel=places)
        assert two.grad_norm == pytest.approx(one.grad_norm, rel=places)
        # Rewards are small differences of many nats.
        nats = sum(abs(one.sums[name]) for name in ("logp_chosen", "logp_rejected"))
        assert two.sums == pytest.approx(one.sums, rel=places, abs=places * nats)
    held_out = list(zip(events(mine, EvalDone), events(theirs, EvalDone), strict=True))
    assert len(held_out) == 3
    for one, two in held_out:
        assert (one.tokens, two.loss) == (two.tokens, pytest.approx(one.loss, rel=places))
        nats = sum(abs(one.scores[name]) for name in ("logp_chosen", "logp_rejected"))
        assert two.scores == pytest.approx(one.scores, rel=places, abs=places * nats)
    first, second = weights(mine), weights(theirs)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert (tensor - second[name]).abs().max() < 1e-5, name


@pytest.mark.full
@TASKS
@pytest.mark.parametrize("method", ["full", "lora"])
def test_preferences_are_learnt_the_same_in_passes_of_any_size_and_packed(train, tmp_path, subtests, task, method):
    """With accumulation of 1, 3, 4 and 8 passes, and with the reference computed in another layout than the steps."""
    base = from_model(save_tiny_model(tmp_path / "llama", "llama")) | {"task.chat_template": "chatml"}
    task = task | (base | {"tuning.method": "lora", "tuning.r": 4} if method == "lora" else {})
    whole = train("whole", task | PADDED | {"training.per_device_train_batch_size": 8})
    steps = events(whole, StepDone)
    assert [step.samples for step in steps] == [8, 8, 6, 8, 8]
    assert steps[-1].loss < steps[0].loss, "it learns"
    assert task["task.type"] == "preference" or steps[-1].scores["kl"] > 0
    assert steps[0].scores["reward_chosen"] == pytest.approx(0, abs=1e-4), "the model equals its reference"
    for rows in (1, 2, 3):
        with subtests.test(f"{rows} rows in a pass"):
            passes = {"training.per_device_train_batch_size": rows}
            check_equal(whole, train(f"by-{rows}", task | PADDED | passes))
    packed = train("packed", task | PACKED)
    # With the words that a tokenizer from scratch learns, several rows fit into one.
    assert method == "lora" or events(packed, StepDone)[0].positions < steps[0].positions
    check_equal(whole, packed)


@pytest.mark.full
@TASKS
@pytest.mark.parametrize("layout", [PACKED, PADDED], ids=["packed", "padded"])
def test_compiled_layers_learn_the_same(train, task, layout):
    """The compiler's graphs are carried out without compiled code, which would take a minute."""
    with counted_compilations(carried_out=False):
        compiled = train("compiled", task | layout | {"training.torch_compile": "true"})
    messages = {event.kind: event.message for event in events(compiled, RunProblem)}
    assert "compiled" in messages and "not compiled" not in messages, messages
    check_equal(train("plain", task | layout), compiled, places=1e-5)


@pytest.mark.full
def test_the_losses_of_the_first_step_are_those_of_a_model_that_equals_its_reference(train):
    """The parts of a loss are divided by their own counts."""
    pairs, marked = (events(train(name, task), StepDone)[0] for name, task in (("pairs", PAIRS), ("marked", MARKED)))
    assert pairs.scores["preference"] == pytest.approx(math.log(2), rel=1e-5)
    assert pairs.loss == pytest.approx(pairs.scores["preference"] + pairs.scores["likelihood"])
    assert pairs.tokens == pairs.counts["preference"] == pairs.samples == 8 < pairs.counts["likelihood"]
    desirable, undesirable = (marked.counts[name] for name in ("reward_chosen", "reward_rejected"))
    assert marked.tokens == marked.counts["kl"] == marked.samples == 8 == desirable + undesirable
    assert marked.loss == pytest.approx(0.5 * (desirable + 0.7 * undesirable) / 8, rel=1e-5)


@pytest.mark.full
@TASKS
def test_two_processes_learn_of_packed_rows_what_one_does(train, forked_ranks, task):
    changes = task | PACKED | UNEVEN
    check_equal(train("alone", changes), train("of-two", changes | {"distributed.processes": 2}))


@pytest.mark.full
def test_two_processes_learn_with_odds_ratios_what_one_does(train, forked_ranks):
    """ORPO has no reference."""
    changes = {"task.type": "preference", "task.loss_type": "orpo"} | PADDED | UNEVEN
    check_equal(train("alone", changes), train("of-two", changes | {"distributed.processes": 2}))


WITH_DEEPSPEED = [
    pytest.mark.e2e,
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed"),
]


@pytest.mark.full
@pytest.mark.parametrize(
    "strategy", ["fsdp", *(pytest.param(name, marks=WITH_DEEPSPEED) for name in ("deepspeed-2", "deepspeed-3"))]
)
@TASKS
def test_a_split_model_learns_what_a_whole_one_does(train, forked_ranks, strategy, task):
    # Fewer rows than passes of the others at the end of an epoch.
    uneven = task | PADDED | UNEVEN | {"training.per_device_train_batch_size": 1}
    more = {"distributed.processes": 2, "distributed.strategy": strategy}
    check_equal(train("alone", uneven), train("of-two", uneven | more))


@pytest.mark.full
@TASKS
def test_passes_that_run_out_of_memory_are_halved_between_rows(train, open_run, private_home, monkeypatch, task):
    """In steps, and in the pass before training."""
    whole = train("whole", task | PACKED)
    forget_values(private_home)
    read, reference_values = [], TwoDocumentsLoss.reference_values

    def short_of_memory(self, batch):
        read.append(batch.sample_count)
        if batch.sample_count > 2:
            raise torch.OutOfMemoryError("planted")
        return reference_values(self, batch)

    monkeypatch.setattr(TwoDocumentsLoss, "reference_values", short_of_memory)
    take_step = components_module.take_step

    def short(fetch, *given, **more):
        def fetched():
            window = fetch()
            if any(batch.sample_count > 2 for batch in window):
                raise torch.OutOfMemoryError("planted")
            return window

        return take_step(fetched, *given, **more)

    monkeypatch.setattr(components_module, "take_step", short)
    opened = open_run("halved", task | PACKED)
    assert execute_run(opened).exit_code == 0
    assert events(opened.folder, MicroBatchReduced)
    assert max(read) > 2 >= read[-1]
    check_equal(whole, opened.folder)


@pytest.mark.full
@TASKS
def test_a_trained_model_is_measured_beside_what_its_base_says_of_each_row(train, tmp_path, capsys, task):
    """By `evaluate` and by what certifies exports. A model from scratch has no base."""
    base = from_model(save_tiny_model(tmp_path / "llama", "llama")) | {"task.chat_template": "chatml"}
    run = train("adapted", task | PADDED | base | {"tuning.method": "lora"})
    last = events(run, EvalDone)[-1]
    capsys.readouterr()
    assert main(["evaluate", str(run.root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    [model] = found["models"]
    assert model["loss"] == pytest.approx(last.loss, rel=1e-4)
    assert model["scores"] == pytest.approx(last.scores, rel=1e-4, abs=1e-3)
    assert len(model["row_losses"]) == 8 and len(set(model["row_losses"])) > 4
    margins = [one["scores"]["reward_margin"] for one in (found["reference"], model)]
    assert margins[0] == pytest.approx(0, abs=1e-4) and abs(margins[1]) > 1e-3
    asked = {"run": str(run.root), "folder": str(run.model), "format": "", "rows": 200, "texts": None}
    certified = measure(asked | {"logits": str(tmp_path / "logits.npy")}, lambda **_: None)
    assert certified["loss"] == pytest.approx(model["loss"])
    # Free answers are not measured again.
    assert certified["scores"] == pytest.approx({name: model["scores"][name] for name in certified["scores"]}, abs=1e-4)
    assert {"reward_margin", "reward_chosen", "logp_rejected"} <= certified["scores"].keys()
    scratch = train("scratch", task | PADDED | {"training.max_steps": 1})
    capsys.readouterr()
    assert main(["evaluate", str(scratch.root)]) == 2
    errors = capsys.readouterr().err
    assert f"the {task['task.type']} loss of scratch needs the outputs of the model before training" in errors
    assert "training began with random weights" in errors and errors.count("\n") == 1


# Of each block that is kept a line, by group and process; the strike comes behind the second.
KEEPING = """
import os, signal
from tui_trainer.training import row_values
row_values._LEAST_ROWS = 4
keep, count = row_values.RowReader._keep, 0
def keeping(self, number, values):
    global count
    keep(self, number, values)
    with open({log!r}, "a") as file:
        file.write("{who} " + f"{{self._rows.path.stem}} {{number}}\\n")
    count += 1
    if count == {last}:
        os.kill(os.getpid(), signal.SIGKILL)
row_values.RowReader._keep = keeping
"""
# 22 rows to train on and 8 held out, of which evaluations read all.
BLOCKS = {("train", str(number)) for number in range(6)} | {("eval", "0"), ("eval", "1")}


def kept_in(log):
    """Of each start, the blocks that it has read."""
    found = {}
    for line in log.read_text().splitlines():
        who, *block = line.split()
        found.setdefault(who.partition("-")[0], []).append(tuple(block))
    return found


def forget_values(home):
    folders = list(home.glob("**/values-*"))
    assert len(folders) == 2, "one for the rows to train on, one for those held out"
    for folder in folders:
        shutil.rmtree(folder)


@pytest.mark.full
def test_a_process_killed_in_the_middle_of_the_pass_before_training_goes_on_to_the_same_bits(
    train, forked_ranks, private_home, tmp_path
):
    log = tmp_path / "kept.txt"

    def prelude(group, rank):
        last = 2 if (group, rank) == (0, 1) else 0
        return KEEPING.format(log=str(log), who=f"{group}-{rank}", last=last)

    forked_ranks.prelude = prelude
    killed = train("killed", MARKED | PACKED | {"distributed.processes": 2})
    assert len(forked_ranks.started) == 2 and -9 in forked_ranks.ends[0]
    first, again = kept_in(log)["0"], kept_in(log)["1"]
    assert len(first) >= 2 and again and len(first + again) == len({*first, *again}), "no block is read twice"
    assert {*first, *again} == BLOCKS
    known = train("known", MARKED | PACKED | {"distributed.processes": 2})
    assert "2" not in kept_in(log), "another run of the same model and rows reads nothing"
    forget_values(private_home)
    whole = train("whole", MARKED | PACKED | {"distributed.processes": 2})
    assert set(kept_in(log)["3"]) == BLOCKS
    assert same(killed, whole) and same(known, whole)
    assert {step.step: step.sums for step in events(killed, StepDone)} == {
        step.step: step.sums for step in events(whole, StepDone)
    }


@pytest.mark.full
def test_a_run_that_is_stopped_in_the_pass_before_training_keeps_the_blocks_it_has_read(open_run, monkeypatch):
    opened = open_run("stopped", PAIRS | PADDED)
    monkeypatch.setattr(row_values, "_LEAST_ROWS", 4)
    keep = row_values.RowReader._keep

    def keeping(self, number, values):
        keep(self, number, values)
        if number == 1:
            controls.request(opened.folder.control, "stop")

    monkeypatch.setattr(row_values.RowReader, "_keep", keeping)
    assert execute_run(opened).exit_code == 3
    assert not events(opened.folder, StepDone)
    read = []
    monkeypatch.setattr(row_values.RowReader, "_keep", lambda self, *given: read.append(given[0]) or keep(self, *given))
    resumed = execute_run(reopen_run(opened.folder))
    assert resumed.exit_code == 0 and len(events(opened.folder, StepDone)) == STEPS
    assert read == [2, 3, 4, 5, 0, 1], "of the rows to train on those that were left, then those held out"
    progress = [event for event in events(opened.folder, Progress) if event.what == "reference model"][-1]
    assert progress.done == progress.total == 8, "rows held out"
