"""What the checks say of prepared rows: trained tokens, rows that lose their end, leaks and rare classes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.advice.test_single_checks import MACHINE, look
from tui_trainer.advice.context import Context
from tui_trainer.advice.fixes import patched
from tui_trainer.advice.gather import gather
from tui_trainer.config.load import Request
from tui_trainer.data.preparing.cache import Counts
from tui_trainer.data.sources.splits import SplitUse
from tui_trainer.hardware.storage import prepared_data_folder
from tui_trainer.launching.open_run import load_config
from tui_trainer.tasks import find_task
from tui_trainer.tasks.contract import DataFacts

NONE = dict.fromkeys(Counts.__dataclass_fields__, 0)
ROWS = {
    "rows_read": 1000,
    "train_rows": 900,
    "eval_rows": 100,
    "eval_documents": 100,
    "train_tokens": 50_000,
    "train_labels": 9_000,
}
COMMON = {"problem_type": "single_label_classification"}


@pytest.fixture(scope="module")
def basis() -> Context:
    return gather(load_config(Request()), hardware=MACHINE)


@pytest.fixture
def seen(basis):
    """`seen(bad_rows=3)`: the context of a table of which so much was counted; `details` and `settings` beside."""

    def make(*, details=None, settings=(), of_facts=None, **counts) -> Context:
        counted = Counts(**{**NONE, **ROWS, **counts})
        facts = DataFacts(
            rows=counted.train_rows,
            eval_rows=counted.eval_rows,
            tokens=counted.train_tokens,
            eval_tokens=counted.eval_tokens,
            vocabulary=counted.vocabulary,
            exact=True,
            reason="counted in the prepared data",
            row_tokens=50,
            longest_row=128,
            counts=counted,
            details=details or {},
            **(of_facts or {}),
        )
        loaded = load_config(Request(assignments=settings)) if settings else basis.loaded
        return replace(basis, loaded=loaded, facts=facts)

    return make


@pytest.mark.parametrize("more", [{"classes": 2}, {"target_tokens": 30}])
def test_rows_of_a_table_are_not_taken_for_one_stream_of_text(basis, seen, more):
    stream = seen(rows_read=0)
    assert stream.facts.is_stream and "one stream" in look("padding", stream).evidence
    facts = replace(seen(of_facts=more).facts, longest_row=128, row_tokens=40.0)
    context = replace(basis, facts=facts, plan=_with_passes_of(basis.plan, 8))
    assert not facts.is_stream and "documents of about 40 tokens, the longest 128" in look("padding", context).evidence
    assert look("padding", context).fix == {"data.group_by_length": True}
    length = look("sequence_length", context)
    assert length.status == "pass" and "900 of them, 40 tokens on average; what is longer loses" in length.evidence


def _with_passes_of(plan, rows: int):
    micro = plan.per_device_train_batch_size.model_copy(update={"value": rows})
    return plan.model_copy(update={"per_device_train_batch_size": micro})


def test_rows_of_a_validation_split_are_held_out_whatever_the_share(basis):
    use = SplitUse(source="corpus", trains="train (2 files)", evaluates="validation (valid.csv)")
    rows = basis.plan.eval_rows.model_copy(update={"value": 900})
    loaded = load_config(Request(assignments=("data.eval_fraction=0",)))
    context = replace(basis, loaded=loaded, plan=basis.plan.model_copy(update={"splits": (use,), "eval_rows": rows}))
    finding = look("held_out", context)
    assert finding.status == "pass"
    assert finding.evidence == "900 rows of the validation split, validation (valid.csv), are held out"
    few = context.plan.model_copy(update={"eval_rows": rows.model_copy(update={"value": 3})})
    assert look("held_out", replace(context, plan=few)).status == "warn"
    shared = context.plan.model_copy(update={"splits": (replace(use, shares_rows=True),)})
    finding = look("held_out", replace(context, plan=shared))
    assert finding.status == "warn" and "corpus: rows that are evaluated on are trained on as well" in finding.evidence


def test_a_length_is_proposed_that_keeps_99_of_100_rows_whole(seen):
    assert look("truncation", seen(truncated_rows=10)).status == "pass"
    cut = look("truncation", seen(truncated_rows=11, details={"length_for_99_percent": 187}))
    assert cut.status == "warn" and cut.fix == {"data.max_length": 192}
    assert "11 of 1,000 rows (1.1%) are longer than 128 tokens" in cut.evidence and "192 tokens" in cut.evidence
    assert look("truncation", seen(truncated_rows=1000)).fix == {"data.max_length": 256}, "no row shows a length"


def test_no_length_is_proposed_beyond_the_model(seen):
    context = seen(truncated_rows=500, details={"length_for_99_percent": 5000})
    for limit, fix in ((512, {"data.max_length": 512}), (128, None)):
        shape = replace(context.basis.shape, max_position_embeddings=limit)
        verdict = look("truncation", replace(context, plan_basis=replace(context.basis, shape=shape)))
        assert verdict.status == "warn" and verdict.fix == fix and bool(verdict.advice) == (fix is None)


def test_documents_lose_nothing_and_a_stream_has_no_ends(seen):
    documents = {"rows_read": 0, "cut_documents": 5, "pieces": 17, "train_documents": 790}
    verdict = look("truncation", seen(**documents, of_facts={"packed_rows": 3.0}))
    assert verdict.status == "pass" and "5 of 890 documents are cut into 17 rows" in verdict.evidence
    whole = look("truncation", seen(**{**documents, "cut_documents": 0, "pieces": 0}, of_facts={"packed_rows": 3.0}))
    assert whole.status == "pass" and whole.evidence == "each of 890 documents fits into a row; none is cut"
    assert look("truncation", seen(**documents)).status == "n/a"
    assert look("eval_leaks", seen(**documents)).status == "n/a"


def test_rare_classes_are_told_and_weights_mend_it(seen):
    def balance(rows, **more):
        return look("label_balance", seen(details={**COMMON, "class_rows": rows, **more.pop("details", {})}, **more))

    assert balance({"joy": 99, "anger": 10}).status == "pass"
    rare = balance({"joy": 900, "w\u00fctend": 90, "calm": 100})
    assert rare.status == "warn" and rare.fix == {"task.class_weights": "balanced"}
    assert rare.evidence.isascii() and "from 90 rows (w?tend) to 900 (joy)" in rare.evidence and "83%" in rare.evidence
    assert balance({"joy": 900, "anger": 9}, settings=("task.class_weights=balanced",)).status == "pass"
    for kind in ("multi_label_classification", "regression"):
        assert balance({"joy": 900, "anger": 9}, details={"problem_type": kind}).status == "n/a"


def test_the_fixes_mend_real_data(basis, tmp_path, monkeypatch):
    """Preparing a table counts what the checks look at; after a fix they pass."""
    monkeypatch.setenv("TUI_TRAINER_HOME", str(tmp_path / "home"))
    path = _table(tmp_path / "rows.jsonl")
    settings = {
        "task.type": "sequence_classification", "data.path": str(path), "model.init": "scratch", "data.max_length": 24,
        "tuning.method": "full", "model.scratch.vocab_size": 300, "training.max_steps": 5,
    }  # fmt: skip
    loaded = load_config(Request(assignments=tuple(f"{key}={json.dumps(value)}" for key, value in settings.items())))
    for name in ("truncation", "eval_leaks", "label_balance"):
        verdict = look(name, _prepared(basis, loaded))
        assert verdict.status == "warn" and verdict.fix, (name, verdict)
        mended = patched(loaded, verdict.fix)
        after = look(name, _prepared(basis, mended))
        assert after.status == "pass", (name, verdict.fix, after)


def _table(path: Path) -> Path:
    """Of 130 rows 4 are long, 10 of one class, and 30 repeat others."""
    words = ("sheep", "goat", "cow", "hen", "horse")
    rows = [{"text": f"{words[n % 5]} {n}", "label": "joy"} for n in range(90)]
    rows += [{"text": f"{words[n % 5]} minus {n}", "label": "anger"} for n in range(6)]
    rows += [{"text": " ".join(str(n * k % 89) for k in range(20)), "label": "anger"} for n in range(4)]
    rows += rows[:30]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _prepared(basis: Context, loaded) -> Context:
    """With the facts of the table; the plan is that of another run, which decides nothing here."""
    task = find_task(loaded.config.task.type)
    data = task.prepare(loaded.config, prepared_data_folder(), lambda *_: None)
    return replace(basis, loaded=loaded, facts=task.facts(loaded.config, data))
