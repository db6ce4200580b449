"""A task of pairs (`toy_pairs`) learns the same packed, padded, one by one, in halved passes and in two processes."""

from __future__ import annotations

import json
import math
import shutil
import sys
from importlib.util import find_spec

import pytest
import torch

from tests.distributed.outcomes import events, same, weights
from tests.tiny_models import save_tiny_model
from tests.toy_tasks import toy_pairs
from tests.trained_runs import ANIMALS, SETTINGS
from tui_trainer.cli import main
from tui_trainer.config.load import Request
from tui_trainer.exporting.measured import measure
from tui_trainer.launching.open_run import load_config, open_new, reopen_run
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.launching.preview import NO_SIGNS, make_preview, sample_lines
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.runs import controls
from tui_trainer.runs.events import EvalDone, MicroBatchReduced, Progress, StepDone
from tui_trainer.tasks import find_task
from tui_trainer.training import components as components_module
from tui_trainer.training import row_values

STEPS = 5
PACKED = {"data.packing": "true"}
PADDED = {"data.packing": "false"}


@pytest.fixture(autouse=True)
def toy():
    toy_pairs.install()
    yield
    toy_pairs.uninstall()


@pytest.fixture
def request_of(tmp_path):
    """`request_of(name, changes)`: a run of five steps on pairs of uneven lengths."""
    rows = []
    for n in range(30):
        one, other = ANIMALS[n % 4], ANIMALS[(n + 1 + n % 2) % 4]
        chosen = f"{one} {'runs ' * (n % 5)}home"
        rows.append({"prompt": f"The {one} number {n}", "chosen": chosen, "rejected": f"{other} {'sleeps ' * (n % 3)}"})
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(name, changes):
        settings = SETTINGS | {
            "task.type": "toy_pairs",
            "data.max_length": 64,
            "training.max_steps": STEPS,
            "training.per_device_train_batch_size": 4,
            "training.adam_epsilon": 1e-3,
            "evaluation.eval_steps": 2,
            "output.runs_dir": tmp_path / "runs",
            "output.name": name,
        }
        assignments = tuple(f"{key}={value}" for key, value in (settings | changes).items())
        return Request(assignments=assignments, shortcuts={"data.path": str(path)})

    return make


@pytest.fixture
def open_pairs(request_of):
    """The same, not begun."""
    return lambda name, changes: open_new(load_config(request_of(name, changes)))


@pytest.fixture
def train(open_pairs):
    def run(name, changes):
        opened = open_pairs(name, changes)
        outcome = execute_run(opened)
        assert outcome.exit_code == 0, (outcome, *(path.read_text() for path in opened.folder.logs.glob("rank-*.txt")))
        return opened.folder

    return run


def test_a_preview_shows_both_documents_of_each_pair_and_the_plan_counts_them(request_of, subtests):
    for layout in (PACKED, PADDED):
        with subtests.test(str(layout)):
            loaded = load_config(request_of("shown", layout | {"data.max_length": 16}))
            preview, plan = make_preview(loaded, 50, lambda *_: None), estimated_plan(loaded)
            shown = {(one.number, one.part): one for sample in preview.samples for one in sample.documents}
            assert sorted(shown) == [(number, part) for number in range(1, 23) for part in (1, 2)]
            assert sum(one.trained_tokens for one in shown.values()) == preview.counts.train_labels
            for number in range(1, 23):
                first, second = (shown[number, part].pieces for part in (1, 2))
                assert all("The " in "".join(piece.text for piece in pieces)[:10] for pieces in (first, second))
                first, second = ("".join(x.text for x in pieces if x.trained) for pieces in (first, second))
                assert first.endswith("home") and first != second and not second.endswith("home")
            longest = preview.counts.longest_row
            assert longest <= 16 and preview.counts.row_documents == 2
            # Packed, both documents of a pair lie in one row.
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
        # Margins are small differences of many nats.
        assert two.sums == pytest.approx(one.sums, rel=places, abs=places * one.sums["likelihood"])
    held_out = list(zip(events(mine, EvalDone), events(theirs, EvalDone), strict=True))
    assert len(held_out) == 3
    for one, two in held_out:
        assert (one.tokens, two.loss) == (two.tokens, pytest.approx(one.loss, rel=places))
        nats = one.scores["likelihood"] * one.tokens
        assert two.scores == pytest.approx(one.scores, rel=places, abs=places * nats)
    first, second = weights(mine), weights(theirs)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert (tensor - second[name]).abs().max() < 1e-5, name


@pytest.mark.full
def test_pairs_are_learnt_the_same_whole_one_by_one_and_packed(train):
    whole = train("padded", PADDED | {"training.per_device_train_batch_size": 8})
    steps = events(whole, StepDone)
    for step in steps:
        assert step.tokens == step.counts["preference"] == step.counts["accuracy"] == step.samples == 8 or (
            step.step == 3 and step.samples < 8
        )
        assert step.loss == pytest.approx(step.scores["preference"] + step.scores["likelihood"])
        assert step.counts["likelihood"] > step.counts["preference"]
    assert steps[-1].scores["margin"] > steps[0].scores["margin"], "it learns"
    check_equal(whole, train("one-by-one", PADDED | {"training.per_device_train_batch_size": 1}))
    packed = train("packed", PACKED)
    assert events(packed, StepDone)[0].positions < steps[0].positions, "packed rows have less padding"
    check_equal(whole, packed)


@pytest.mark.full
def test_two_processes_learn_of_packed_pairs_what_one_does(train, forked_ranks):
    forked_ranks.prelude = lambda group, rank: toy_pairs.INSTALL
    uneven = PACKED | {"training.effective_batch_size": 7}
    check_equal(train("alone", uneven), train("of-two", uneven | {"distributed.processes": 2}))


@pytest.mark.full
@pytest.mark.parametrize("loss_type", ["sigmoid", "orpo"])
def test_a_preference_run_is_the_same_in_every_layout_and_in_two_processes(train, forked_ranks, subtests, loss_type):
    """Each pair stays whole, and the reference is computed in another layout than the steps."""
    base = {"task.type": "preference", "task.loss_type": loss_type, "training.effective_batch_size": 7}
    whole = train("whole", PADDED | base | {"training.per_device_train_batch_size": 7})
    losses = [step.loss for step in events(whole, StepDone)]
    assert len(losses) == STEPS and losses[-1] < losses[0]
    if loss_type == "sigmoid":
        assert losses[0] == pytest.approx(math.log(2), rel=1e-6)
    variants = {
        "one-by-one": PADDED | {"training.per_device_train_batch_size": 1},
        "packed": PACKED,
        "of-two": PACKED | {"distributed.processes": 2},
    }
    for name, changes in variants.items():
        with subtests.test(name):
            other = train(name, base | changes)
            assert [step.loss for step in events(other, StepDone)] == pytest.approx(losses, rel=1e-5)
            tensors = weights(other)
            for key, tensor in weights(whole).items():
                assert (tensor - tensors[key]).abs().max() < 1e-5, key


WITH_DEEPSPEED = [
    pytest.mark.e2e,
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed"),
]


@pytest.mark.full
@pytest.mark.parametrize(
    "strategy", ["fsdp", *(pytest.param(name, marks=WITH_DEEPSPEED) for name in ("deepspeed-2", "deepspeed-3"))]
)
def test_a_split_model_learns_of_pairs_what_a_whole_one_does(train, forked_ranks, strategy):
    forked_ranks.prelude = lambda group, rank: toy_pairs.INSTALL
    # Fewer rows than passes of the others at the end of an epoch.
    uneven = PADDED | {"training.effective_batch_size": 7, "training.per_device_train_batch_size": 1}
    more = {"distributed.processes": 2, "distributed.strategy": strategy}
    check_equal(train("alone", uneven), train("of-two", uneven | more))


@pytest.mark.full
def test_passes_that_run_out_of_memory_are_halved_between_pairs(train, open_pairs, private_home, monkeypatch):
    """In steps, and in the pass before training."""
    whole = train("whole", PACKED)
    forget_values(private_home)
    # As the program has loaded it.
    loss = sys.modules[type(find_task("toy_pairs")).__module__].PairLoss
    read, of_documents = [], loss.of_documents

    def short_of_memory(self, batch):
        read.append(batch.sample_count)
        if batch.sample_count > 2:
            raise torch.OutOfMemoryError("planted")
        return of_documents(self, batch)

    monkeypatch.setattr(loss, "of_documents", short_of_memory)
    take_step = components_module.take_step

    def short(fetch, *given, **more):
        def fetched():
            window = fetch()
            if any(batch.sample_count > 2 for batch in window):
                raise torch.OutOfMemoryError("planted")
            return window

        return take_step(fetched, *given, **more)

    monkeypatch.setattr(components_module, "take_step", short)
    opened = open_pairs("halved", PACKED)
    assert execute_run(opened).exit_code == 0
    assert events(opened.folder, MicroBatchReduced)
    assert max(read) > 2 >= read[-1]
    check_equal(whole, opened.folder)


@pytest.mark.full
def test_a_trained_model_is_measured_beside_what_its_base_says_of_each_row(train, tmp_path, capsys):
    """By `evaluate` and by what certifies exports. A model from scratch has no base."""
    base = str(save_tiny_model(tmp_path / "llama", "llama"))
    adapted = {"model.init": "pretrained", "model.model_name_or_path": base, "tuning.method": "lora"}
    run = train("adapted", PADDED | adapted)
    last = events(run, EvalDone)[-1]
    capsys.readouterr()
    assert main(["evaluate", str(run.root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    [model] = found["models"]
    assert model["loss"] == pytest.approx(last.loss, rel=1e-4)
    assert model["scores"] == pytest.approx(last.scores, rel=1e-4, abs=1e-3)
    assert len(model["row_losses"]) == 8 and len(set(model["row_losses"])) > 4
    margins = [one["scores"]["margin"] for one in (found["reference"], model)]
    assert margins[0] == pytest.approx(0, abs=1e-4) and abs(margins[1]) > 1e-3
    asked = {"run": str(run.root), "folder": str(run.model), "format": "", "rows": 200, "texts": None}
    certified = measure(asked | {"logits": str(tmp_path / "logits.npy")}, lambda **_: None)
    assert certified["loss"] == pytest.approx(model["loss"])
    assert certified["scores"] == pytest.approx(model["scores"], abs=1e-4)
    scratch = train("scratch", PADDED | {"training.max_steps": 1})
    capsys.readouterr()
    assert main(["evaluate", str(scratch.root)]) == 2
    told = capsys.readouterr().err
    assert "the toy_pairs loss of scratch needs the outputs of the model before training" in told
    assert "training began with random weights" in told and told.count("\n") == 1


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
        return toy_pairs.INSTALL + KEEPING.format(log=str(log), who=f"{group}-{rank}", last=last)

    forked_ranks.prelude = prelude
    killed = train("killed", PACKED | {"distributed.processes": 2})
    assert len(forked_ranks.started) == 2 and -9 in forked_ranks.ends[0]
    first, again = kept_in(log)["0"], kept_in(log)["1"]
    assert len(first) >= 2 and again and len(first + again) == len({*first, *again}), "no block is read twice"
    assert {*first, *again} == BLOCKS
    known = train("known", PACKED | {"distributed.processes": 2})
    assert "2" not in kept_in(log), "another run of the same model and rows reads nothing"
    forget_values(private_home)
    whole = train("whole", PACKED | {"distributed.processes": 2})
    assert set(kept_in(log)["3"]) == BLOCKS
    assert same(killed, whole) and same(known, whole)
    assert {step.step: step.sums for step in events(killed, StepDone)} == {
        step.step: step.sums for step in events(whole, StepDone)
    }


@pytest.mark.full
def test_a_run_that_is_stopped_in_the_pass_before_training_keeps_the_blocks_it_has_read(open_pairs, monkeypatch):
    opened = open_pairs("stopped", PADDED)
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
    progress = [event for event in events(opened.folder, Progress) if event.what == "reading pairs"][-1]
    assert progress.done == progress.total == 8, "rows held out"
