"""How a plan packs: when, why, and what it makes of the batch."""

from dataclasses import replace

import pytest

from tui_trainer.config.load import Request
from tui_trainer.launching.start import load_config
from tui_trainer.models.shape import scratch_shape
from tui_trainer.planning.batching import cut_batch
from tui_trainer.planning.packing import packed_cut, packing, packing_problems, widest_row
from tui_trainer.tasks.contract import DataFacts

FACTS = DataFacts(
    rows=1000, eval_rows=100, tokens=50_000, eval_tokens=5_000, vocabulary=300, exact=True, reason="counted",
    row_tokens=49.0, longest_row=200, packed_rows=6.4,
)  # fmt: skip


def loaded(*assignments: str):
    always = ("training.effective_batch_size=32", "data.max_length=256")
    return load_config(Request(profile="finetune", assignments=(*always, *assignments)))


def shape(model_type: str = "llama"):
    return replace(scratch_shape(loaded().config.model.scratch, 300), model_type=model_type)


def test_short_documents_share_rows():
    planned = packing(loaded(), FACTS, shape(), 32)
    assert planned.value
    assert planned.reason == "32 documents of about 49 tokens fill 6.4 rows"


@pytest.mark.parametrize(
    ("config", "facts", "family", "reason"),
    [
        (("data.packing=false",), FACTS, "llama", "data.packing = false, from --set"),
        ((), replace(FACTS, packed_rows=None), "llama", "rows are cut from one long text: they are full"),
        ((), replace(FACTS, packed_rows=31.0), "llama", "there is little to save"),
        ((), FACTS, "opt", "OPT counts positions through the whole row: packed documents would mix"),
    ],
)
def test_where_packing_saves_nothing_or_mixes_documents_there_is_none(config, facts, family, reason):
    planned = packing(loaded(*config), facts, shape(family), 32)
    assert not planned.value
    assert reason in planned.reason


def test_packing_that_was_asked_for_and_would_mix_documents_is_refused():
    asked = loaded("data.packing=true")
    assert not packing_problems(asked, shape())
    problem = packing_problems(asked, shape("bloom"))[0]
    assert (problem.key, problem.where) == ("data.packing", "--set")
    assert "Bloom measures distances through the whole row" in problem.message


@pytest.mark.parametrize(
    ("config", "fits", "micro", "accumulation"),
    [
        ((), 100, 8, 1),  # 6.4 rows on average, up to 8 in a step
        ((), 3, 3, 3),
        (("training.per_device_train_batch_size=2",), 100, 2, 4),
        (("training.gradient_accumulation_steps=4",), 100, 2, 4),
        (("training.gradient_accumulation_steps=16",), 100, 1, 8),
    ],
)
def test_a_micro_batch_counts_packed_rows(config, fits, micro, accumulation):
    asked = loaded(*config)
    cut = packed_cut(asked, cut_batch(asked, lambda limit: limit), FACTS, 256, lambda limit: min(limit, fits))
    assert (cut.micro, cut.accumulation) == (micro, accumulation)
    assert cut.effective == 32, "a step learns from the same documents, however they lie"


@pytest.mark.parametrize(
    ("length", "changes", "packed", "wanted"),
    [
        (256, {}, True, 256),  # 32 x 49 tokens fill several rows
        (4096, {}, True, 2039),  # all in one row, and 30 % more on some steps
        (4096, {"longest_row": 3000}, True, 3000),
        (256, {}, False, 200),  # padded to the longest
        (256, {"exact": False}, False, 256),  # the longest that was looked at, and half as much again
        (1024, {"longest_row": 0, "packed_rows": None}, False, 1024),
    ],
)
def test_the_widest_row_is_no_wider_than_what_a_batch_fills(length, changes, packed, wanted):
    asked = loaded(f"data.max_length={length}")
    assert widest_row(asked.config, replace(FACTS, **changes), packed) == wanted


def test_a_small_batch_is_one_row():
    asked = loaded("data.max_length=4096")
    cut = packed_cut(asked, cut_batch(asked, lambda limit: limit), FACTS, 2039, lambda limit: limit)
    assert (cut.micro, cut.accumulation) == (1, 1)
