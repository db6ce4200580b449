"""The results of a run, and what it does on the way."""

import json
import math
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.runs.journals import read_all
from tests.tiny_models import save_tiny_model
from tests.training.finished_runs import of_kind
from tui_trainer.config.load import Request, load
from tui_trainer.data.preparing.token_rows import Rows
from tui_trainer.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED
from tui_trainer.launching.open_run import free_name, load_config, open_new, reopen_run
from tui_trainer.launching.prepare import read_plan
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.runs.events import (
    BaselinesMeasured,
    CheckpointSaved,
    DataPrepared,
    EpochDone,
    EvalDone,
    PlanMade,
    RunFailed,
    RunFinished,
    RunProblem,
    StepDone,
    TextSampled,
)
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.state import apply_events
from tui_trainer.training import checkpoint
from tui_trainer.training.checkpoint_folder import steps_saved


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    """One run of 40 steps with everything on, shared by several tests."""
    folder = tmp_path_factory.mktemp("learnt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUI_TRAINER_HOME", str(folder / "home"))
        text = folder / "text.txt"
        text.write_text("".join(f"{n} plus one is {n + 1}.\n" for n in range(150)))
        settings = {
            "data.path": text, "data.max_length": 32, "data.eval_fraction": 0.2, "training.max_steps": 40,
            "training.effective_batch_size": 8, "training.learning_rate": 0.01, "evaluation.eval_steps": 20,
            "checkpoint.save_steps": 10, "logging.sample_steps": 20, "logging.logging_steps": 7,
            "model.scratch.hidden_size": 32, "model.scratch.num_hidden_layers": 2,
            "output.runs_dir": folder / "runs", "output.name": "learnt",
        }  # fmt: skip
        run = open_new(load_config(Request(assignments=tuple(f"{key}={value}" for key, value in settings.items()))))
        assert execute_run(run).exit_code == EXIT_DONE
    return run.folder


def test_the_loss_falls(learnt):
    steps = of_kind(learnt, StepDone)
    assert [event.step for event in steps] == list(range(1, 41))
    assert steps[-1].loss < 0.5 * steps[0].loss


def test_the_model_is_loaded_by_transformers_and_continues_a_prompt(learnt):
    tokenizer = AutoTokenizer.from_pretrained(learnt.model)
    model = AutoModelForCausalLM.from_pretrained(learnt.model)
    ids = tokenizer("12 plus one", return_tensors="pt")
    text = tokenizer.decode(model.generate(**ids, max_new_tokens=12, do_sample=False)[0])
    assert text.startswith("12 plus one is")
    assert tokenizer.decode(tokenizer("plus\n12.")["input_ids"]) == "plus\n12."


def test_text_that_spells_the_end_token_is_not_the_end_token(learnt):
    tokenizer = AutoTokenizer.from_pretrained(learnt.model)
    ids = tokenizer("<eos>")["input_ids"]
    assert len(ids) == 5
    assert tokenizer.eos_token_id not in ids


def test_a_checkpoint_is_loaded_by_transformers_too(learnt):
    folder = learnt.checkpoints / "step-40"
    final, saved = (AutoModelForCausalLM.from_pretrained(path) for path in (learnt.model, folder))
    ids = AutoTokenizer.from_pretrained(folder)("7 plus", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        assert torch.equal(final(ids).logits, saved(ids).logits)


def test_evaluation_and_checkpoints_happen_inside_the_epochs(learnt):
    assert [event.step for event in of_kind(learnt, EvalDone)] == [20, 40]
    assert [event.step for event in of_kind(learnt, CheckpointSaved)] == [10, 20, 30, 40]
    assert steps_saved(learnt.checkpoints) == [40, 30]
    assert [event.step for event in of_kind(learnt, TextSampled)] == [20, 40]


def test_an_epoch_summary_is_the_mean_over_its_tokens(learnt):
    steps, epochs = of_kind(learnt, StepDone), of_kind(learnt, EpochDone)
    per_epoch = of_kind(learnt, PlanMade)[0].steps_per_epoch
    assert len(epochs) == 40 // per_epoch > 1
    second = steps[per_epoch : 2 * per_epoch]
    mean = sum(event.loss_sum for event in second) / sum(event.tokens for event in second)
    assert math.isclose(epochs[1].mean_loss, mean, rel_tol=1e-12)
    assert math.isclose(epochs[1].seconds, sum(event.step_seconds for event in second), abs_tol=0.01)


def test_training_and_evaluation_have_one_definition_of_the_loss(learnt):
    """The final weights on the held-out rows give what the last evaluation wrote."""
    plan = read_plan(learnt)
    model = AutoModelForCausalLM.from_pretrained(learnt.model)
    prepared = learnt.root.parent.parent / "home" / "cache"
    eval_path = next(prepared.rglob("eval.arrow"))
    rows, total, tokens = Rows(eval_path), 0.0, 0
    with torch.inference_mode():
        for index in range(len(rows)):
            row = torch.tensor(rows.row(index), dtype=torch.int64)
            logits = model(row[None, :-1]).logits[0]
            total += float(torch.nn.functional.cross_entropy(logits, row[1:], reduction="sum"))
            tokens += len(row) - 1
    last = of_kind(learnt, EvalDone)[-1]
    assert plan.eval_rows.value == len(rows)
    assert last.tokens == tokens
    assert math.isclose(last.loss, total / tokens, rel_tol=1e-5)


def test_the_plan_in_the_journal_is_exact(learnt):
    plan = json.loads(learnt.plan.read_text())
    made = of_kind(learnt, PlanMade)[0]
    assert plan["total_steps"] == {"value": 40, "exact": True, "reason": plan["total_steps"]["reason"]}
    assert plan["parameters"]["exact"]
    assert made.parameters == plan["parameters"]["value"]
    model = AutoModelForCausalLM.from_pretrained(learnt.model)
    assert made.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_the_model_card_has_the_baselines_the_data_and_the_loss(learnt):
    baselines = of_kind(learnt, BaselinesMeasured)[0].losses
    assert list(baselines) == [f"{name} baseline" for name in ("bigram", "trigram", "4-gram")]
    card = (learnt.model / "README.md").read_text()
    loss = f"{of_kind(learnt, EvalDone)[-1].loss:.4f}"
    for word in ("text.txt", "bigram baseline", "learning rate", "torch", "held out", loss):
        assert word in card, word


def test_everything_in_the_run_folder_is_private(learnt):
    open_to_others = [path for path in learnt.root.rglob("*") if path.stat().st_mode & 0o077]
    assert not open_to_others


@pytest.mark.full
def test_the_second_run_reuses_the_tokenised_data(tiny_run):
    first, _ = tiny_run("first")
    second, _ = tiny_run("second")
    assert not of_kind(first, DataPrepared)[0].from_cache
    assert of_kind(second, DataPrepared)[0].from_cache


def test_early_stopping_keeps_the_best_weights(tiny_run):
    changes = {
        "training.max_steps": 200,
        "training.learning_rate": 0.3,
        "training.lr_scheduler_type": "constant",
        "evaluation.eval_steps": 5,
        "evaluation.early_stopping_patience": 3,
    }
    folder, outcome = tiny_run("early", changes)
    assert outcome.exit_code == EXIT_DONE
    finished = of_kind(folder, RunFinished)[0]
    evals = of_kind(folder, EvalDone)
    best = min(evals, key=lambda event: event.loss)
    assert finished.reason == "early stopping"
    assert finished.step == best.step + 3 * 5 < 200
    assert best.step in steps_saved(folder.checkpoints)
    model = AutoModelForCausalLM.from_pretrained(folder.model)
    kept = AutoModelForCausalLM.from_pretrained(folder.checkpoints / f"step-{best.step}")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), kept.parameters(), strict=True))


def test_a_loss_that_is_not_finite_stops_the_run_and_spoils_no_weight(tiny_run, monkeypatch):
    plain_loss, calls = NextTokenLoss.__call__, []

    def poisoned(self, batch):
        calls.append(1)
        loss = plain_loss(self, batch)
        return loss * float("nan") if len(calls) == 7 else loss

    monkeypatch.setattr(NextTokenLoss, "__call__", poisoned)
    folder, outcome = tiny_run("poisoned", {"checkpoint.save_steps": 2, "logging.logging_steps": 1})
    assert outcome.exit_code == EXIT_FAILED
    assert "step 7" in outcome.failure
    steps = of_kind(folder, StepDone)
    assert [event.step for event in steps] == list(range(1, 8))
    assert math.isnan(steps[-1].loss)
    assert apply_events(read_all(folder.journal)).status == "failed"
    weights = load_file(folder.checkpoints / "step-6" / "model.safetensors")
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())


def test_a_poisoned_step_within_a_group_changes_no_weight(tiny_run, monkeypatch):
    """The steps after it, before the group is read, still start from finite weights."""
    plain_loss, calls = NextTokenLoss.__call__, []

    def poisoned(self, batch):
        calls.append(1)
        assert all(torch.isfinite(parameter).all() for parameter in self._model.parameters())
        loss = plain_loss(self, batch)
        return loss * float("inf") if len(calls) == 3 else loss

    monkeypatch.setattr(NextTokenLoss, "__call__", poisoned)
    monkeypatch.setattr("tui_trainer.training.recorder.monotonic", lambda: 0.0)  # slow steps end a group early
    _, outcome = tiny_run("poisoned", {"logging.logging_steps": 8})
    assert "step 3" in outcome.failure
    assert len(calls) == 1 + 8, "the first step is written at once, the group of eight after it"


def test_a_failed_save_is_reported_and_training_continues(tiny_run, monkeypatch):
    save, failures = checkpoint.save_file, []

    def failing(tensors, path, **kwargs):
        if len(failures) < 2:
            failures.append(path)
            raise OSError(28, "No space left on device")
        save(tensors, path, **kwargs)

    monkeypatch.setattr(checkpoint, "save_file", failing)
    folder, outcome = tiny_run("full", {"checkpoint.save_steps": 3})
    assert outcome.exit_code == EXIT_DONE
    problems = of_kind(folder, RunProblem)
    assert [problem.step for problem in problems] == [3, 6]
    assert "No space left" in problems[0].message
    assert steps_saved(folder.checkpoints) == [10, 9]
    assert not [path for path in folder.checkpoints.iterdir() if path.name.startswith(".")]


def test_three_failed_saves_in_a_row_end_the_run(tiny_run, monkeypatch):
    def failing(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", failing)
    _, outcome = tiny_run("full", {"checkpoint.save_steps": 2})
    assert outcome.exit_code == EXIT_FAILED
    assert "third failure" in outcome.failure


def test_an_unforeseen_error_leaves_its_traceback_and_frees_the_run(tiny_run, monkeypatch):
    def broken(self, batch):
        raise KeyError("nobody thought of this")

    # An undo of all would take the tests' own state folder away too.
    with monkeypatch.context() as patched:
        patched.setattr(NextTokenLoss, "__call__", broken)
        folder, outcome = tiny_run("broken")
    assert outcome.exit_code == EXIT_FAILED
    assert "nobody thought of this" in (folder.logs / "error.txt").read_text()
    assert of_kind(folder, RunFailed)[0].log_path == "logs/error.txt"
    reopen_run(folder).lock.release()


@pytest.mark.full
def test_a_run_whose_folder_becomes_unreadable_fails_with_the_reason(tiny_run, monkeypatch):
    """This happens when the ticket of a network file system expires."""

    def refused(path, *content):
        raise PermissionError(13, "Permission denied", str(path))

    def expires(self, batch):
        for name in ("training.checkpoint_folder.steps_saved", "launching.run_lifecycle.write_atomically"):
            monkeypatch.setattr(f"tui_trainer.{name}", refused)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(NextTokenLoss, "__call__", expires)
    folder, outcome = tiny_run("expired")
    assert outcome.exit_code == EXIT_FAILED
    assert "Permission denied" in outcome.failure and "could not be written" in outcome.failure
    assert of_kind(folder, RunFailed)[0].log_path is None


def test_a_run_is_named_after_its_data_model_and_time_and_names_are_unique(tmp_path, subtests):
    for start, recipe, path, model in (
        ("reviews-tiny-bert", "finetune", "/data/reviews.csv.gz", "/models/tiny-bert/"),
        ("imdb-Qwen2.5-1.5B", "finetune", "stanfordnlp/imdb", "Qwen/Qwen2.5-1.5B"),
        ("quickstart", "quickstart", "", ""),
        ("my-notes-1-char-lm", "char-lm", "/home/ada/my notes (1)/", ""),
        ("\u8d70\u308b-first-1647", "finetune", "\u8d70\u308b.jsonl, b.csv", "/runs/first-1647/model"),
        ("jsonl-bert", "finetune", "*.jsonl", "bert"),
        ("x" * 24 + "-" + "\U00020000" * 24, "finetune", "x" * 70, "\U00020000" * 70),
    ):
        with subtests.test(start):
            written = {"data.path": path, "model.model_name_or_path": model}
            written |= {"output.runs_dir": tmp_path}
            settings = tuple(f"{key}={value}" for key, value in written.items() if value)
            loaded = load(Request(profile=recipe, assignments=settings), lambda _: (None, ""))
            names = []
            for _ in range(4):
                names.append(free_name(loaded))
                RunFolder.create(tmp_path, names[-1])
            assert all(re.fullmatch(re.escape(start) + r"-\d{4}(-[23])?", name) for name in names[:3]), names
            assert len(set(names)) == 4


def test_a_resume_is_refused_if_the_weights_of_the_model_folder_changed(tiny_run, tmp_path):
    model = save_tiny_model(tmp_path / "llama", "llama")
    changes = {"model.init": "pretrained", "model.model_name_or_path": model, "profile": "finetune", "tuning.r": 2}
    folder, outcome = tiny_run("adapter", {**changes, "training.max_steps": 2})
    assert outcome.exit_code == EXIT_DONE
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"] += 1.0
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    again = execute_run(reopen_run(folder))
    assert again.exit_code == EXIT_BAD_INPUT and "model has changed since this run started" in str(again.problems[0])


@pytest.mark.full
def test_a_text_sample_of_short_rows_stays_within_the_positions_of_the_model(tiny_run, tmp_path):
    changes = {
        "model.init": "pretrained", "model.model_name_or_path": save_tiny_model(tmp_path / "g", "gpt2", n_positions=8),
        "task.type": "causal_lm", "tuning.method": "full", "data.max_length": 8, "logging.sample_steps": 2,
        "training.max_steps": 4,
    }  # fmt: skip
    folder, outcome = tiny_run("short", changes)
    assert outcome.exit_code == EXIT_DONE, outcome
    assert len(of_kind(folder, TextSampled)) == 2
