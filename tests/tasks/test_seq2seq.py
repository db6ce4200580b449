"""From one text to another: labels, gradients, runs and refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.trainer_pt_utils import LabelSmoother

from tests.tasks.tiny_tasks import TINY, examples, finish, load, of_kind, set_options, write_rows
from tests.tiny_models import SEQ2SEQ, save_tiny_model, tiny_model
from tui_trainer.advice.gather import gather
from tui_trainer.advice.remedies import planned_memory_bytes
from tui_trainer.cli import main
from tui_trainer.config.paths import data_of
from tui_trainer.data.batching.collate import IGNORE
from tui_trainer.data.preparing.token_rows import TokenRow
from tui_trainer.errors import ConfigError
from tui_trainer.losses.micro_batch import micro_batch
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.planning import automatic_values as choices
from tui_trainer.planning.basis import with_settings
from tui_trainer.runs.events import BaselinesMeasured, EvalDone, RunProblem, StepDone, TextSampled
from tui_trainer.tasks import find_task

TASK = find_task("seq2seq")
SETTINGS = {
    **TINY, "task.type": "seq2seq", "task.max_target_length": 12, "data.max_length": 32,
    "training.lr_scheduler_type": "constant", "training.max_steps": 12, "evaluation.generate_rows": 4,
    "logging.sample_steps": 12,
}  # fmt: skip
ANIMALS = ("sheep", "goat", "cow", "horse")


def pairs(count: int = 80) -> list[dict[str, str]]:
    return [
        {"article": f"{n % 9} plus {n % 7}, said the {ANIMALS[n % 4]} number {n}.", "summary": f"the {ANIMALS[n % 4]}"}
        for n in range(count)
    ]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("seq2seq-models")

    def folder(family: str) -> Path:
        return root / family if (root / family).exists() else save_tiny_model(root / family, family)

    return folder


def test_unknown_characters_are_counted_before_the_start_and_refused_where_answers_are_half_of_them(
    tiny_folder, tmp_path, capsys
):
    some = write_rows(tmp_path / "some.jsonl", [{"source": "the hen", "target": "the hen agreed said {"}] * 30)
    most = write_rows(tmp_path / "most.jsonl", [{"source": "the hen", "target": "{}"}] * 30)
    model = ("--model", str(tiny_folder("t5")))
    for command, code in (("plan", 0), ("check", 1)):
        assert main([command, *model, "--data", str(some)]) == code
        assert "tokens to train on (5.56%) are unknown to the tokenizer: {" in capsys.readouterr().out, command
    assert main(["plan", *model, "--data", str(most)]) == 2
    assert "tokens to train on (50.00%) are unknown to the tokenizer: {, }; add tokens" in capsys.readouterr().err
    assert main(["preview", "--json", *model, "--data", str(some)]) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["unknown_eval_tokens"] == 3


@pytest.fixture
def loaded(tmp_path, tiny_folder):
    """`loaded(family, changes, rows)`: the config of a run on a tiny model."""

    def make(family: str, changes: dict | None = None, rows: list[dict] | None = None):
        data = write_rows(tmp_path / "pairs.jsonl", pairs() if rows is None else rows)
        places = {"output.runs_dir": tmp_path / "runs", "data.path": data}
        return load(SETTINGS, places, {"model.model_name_or_path": tiny_folder(family)}, changes or {})

    return make


def prepared(config, tmp_path):
    data = TASK.prepare(config, data_of(config), tmp_path / "cache", lambda *_: None)
    return data, examples(data.train_path)


# Rows -----------------------------------------------------------------------------------------------------------------


def test_rows_are_tokenized_with_the_prefix_before_the_input(loaded, tmp_path, tiny_folder):
    family = "t5"
    changes = {"task.source_prefix": '"summarise: "', "data.eval_fraction": 0}
    _, rows = prepared(loaded(family, changes, pairs(5)).config, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder(family))
    for row, pair in zip(rows, pairs(5), strict=True):
        wanted = tokenizer("summarise: " + pair["article"], truncation=True, max_length=32)["input_ids"]
        assert row.tokens.tolist() == wanted
        assert row.labels.tolist() == tokenizer(text_target=pair["summary"])["input_ids"]
        assert row.labels[-1] == tokenizer.eos_token_id and not row.model_arguments


def test_answers_end_with_the_end_token_that_a_tokenizer_does_not_add(loaded, tmp_path, tiny_folder):
    folder = shutil.copytree(tiny_folder("t5"), tmp_path / "t5")
    content = json.loads((folder / "tokenizer.json").read_text()) | {"post_processor": None}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("the goat")["input_ids"][-1] != tokenizer.eos_token_id
    changes = {"model.model_name_or_path": folder, "data.eval_fraction": 0}
    _, rows = prepared(loaded("t5", changes).config, tmp_path)
    assert {row.labels[-1] for row in rows} == {tokenizer.eos_token_id}


def test_long_inputs_and_answers_lose_their_end_and_are_counted(loaded, tmp_path, tiny_folder):
    long = {"article": "goat " * 40, "summary": "the goat " * 20}
    rows = [*pairs(3), long, {**long, "summary": "short"}]
    data, found = prepared(loaded("t5", {"data.eval_fraction": 0}, rows).config, tmp_path)
    assert data.counts.truncated_rows == 2 and data.counts.truncated_answers == 1
    assert any("1 answer does not fit into a row: generated answers are truncated" in note for note in data.notes)
    eos = AutoTokenizer.from_pretrained(tiny_folder("t5")).eos_token_id
    assert [len(found[3].tokens), len(found[3].labels)] == [32, 12]
    assert found[3].tokens[-1] == found[3].labels[-1] == eos
    assert data.counts.longest_labels == 12
    assert TASK.facts(loaded("t5").config, data).target_tokens == 12


def test_an_estimated_plan_uses_the_longest_allowed_answer(loaded, tmp_path):
    config = loaded("bart").config  # whose tokenizer knows all characters
    facts = TASK.data_facts(config, data_of(config), tmp_path / "cache")
    assert not facts.exact and facts.target_tokens == 12
    exact = TASK.facts(config, TASK.prepare(config, data_of(config), tmp_path / "cache", lambda *_: None))
    assert exact.target_tokens < 12
    # Its answers are no part of what the encoder reads.
    assert facts.row_tokens == pytest.approx(exact.row_tokens, rel=0.25)


# Loss -----------------------------------------------------------------------------------------------------------------


def token_rows(seed: int = 1) -> list[TokenRow]:
    """Inputs and answers of uneven lengths."""
    draw = np.random.default_rng(seed)
    lengths = [(9, 4), (17, 7), (5, 1), (12, 3)]
    return [TokenRow(*(draw.integers(5, 380, n).astype(np.int32) for n in both)) for both in lengths]


def direct(model, rows: list[TokenRow], smoothing: float = 0.0) -> torch.Tensor:
    """Return the summed loss that transformers computes from labels alone."""
    pad, widest = model.config.pad_token_id, max(len(row.tokens) for row in rows)
    ids = torch.full((len(rows), widest), pad)
    mask = torch.zeros_like(ids)
    labels = torch.full((len(rows), max(len(row.labels) for row in rows)), IGNORE)
    for place, row in enumerate(rows):
        ids[place, : len(row.tokens)] = torch.from_numpy(row.tokens.copy())
        mask[place, : len(row.tokens)] = 1
        labels[place, : len(row.labels)] = torch.from_numpy(row.labels.copy())
    output = model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False)
    count = sum(len(row.labels) for row in rows)
    return (LabelSmoother(smoothing)(output, labels) if smoothing else output.loss) * count


def gradients(model) -> dict[str, torch.Tensor]:
    found = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    return found


@pytest.mark.parametrize(
    "family", ["t5", *(pytest.param(name, marks=pytest.mark.full) for name in SEQ2SEQ if name != "t5")]
)
def test_loss_and_gradients_are_those_of_transformers(family, subtests):
    rows = token_rows()
    for chunk_tokens, smoothing, batch_rows in ((0, 0.0, 4), (0, 0.0, 1), (4, 0.0, 2), (0, 0.1, 2), (4, 0.1, 4)):
        with subtests.test(f"chunks of {chunk_tokens} tokens, smoothing {smoothing}, {batch_rows} rows"):
            model = tiny_model(family).train()
            expected_loss = direct(model, rows, smoothing)
            expected_loss.backward()
            expected = gradients(model)
            loss = NextTokenLoss(model, chunk_tokens=chunk_tokens, label_smoothing=smoothing)
            collate, total, label_count = TASK.collate(model, model.config.pad_token_id), 0.0, 0
            for start in range(0, len(rows), batch_rows):
                batch = micro_batch(collate(rows[start : start + batch_rows]))
                part = loss(batch)
                part.backward()
                total, label_count = total + part.item(), label_count + batch.label_count
            assert label_count == sum(len(row.labels) for row in rows)
            assert total == pytest.approx(expected_loss.item(), rel=1e-5)
            mine = gradients(model)
            assert mine.keys() == expected.keys() and len(mine) > 20
            largest = max(float(gradient.abs().max()) for gradient in expected.values())
            for name, gradient in mine.items():
                torch.testing.assert_close(gradient, expected[name], atol=2e-6 * largest, rtol=1e-3)


def test_decoder_inputs_are_those_that_the_model_makes_of_the_labels(subtests):
    for family in SEQ2SEQ:
        with subtests.test(family):
            model = tiny_model(family)
            batch = TASK.collate(model, model.config.pad_token_id)(token_rows())
            expected = model.prepare_decoder_input_ids_from_labels(labels=torch.from_numpy(batch.labels))
            assert batch.model_arguments["decoder_input_ids"].tolist() == expected.tolist()


def test_held_out_loss_has_no_label_smoothing():
    model, rows = tiny_model("t5").eval(), token_rows()
    batch = micro_batch(TASK.collate(model, 0)(rows))
    plain, smooth = (NextTokenLoss(model, label_smoothing=share)(batch).item() for share in (0.0, 0.2))
    assert plain == smooth
    model.train()
    assert NextTokenLoss(model, label_smoothing=0.2)(batch).item() != pytest.approx(plain, rel=1e-3)


def test_a_bias_behind_the_head_is_part_of_the_loss_in_chunks():
    model, rows = tiny_model("bart"), token_rows()
    model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(1))
    batch = micro_batch(TASK.collate(model, 1)(rows))
    loss = NextTokenLoss(model, chunk_tokens=2)
    assert loss(batch).item() == pytest.approx(direct(model, rows).item(), rel=1e-5)
    assert loss.chunks_match_model(batch) and loss.chunk_tokens == 2


def test_memory_of_smaller_batches_is_that_of_a_plan_for_them(loaded, subtests):
    """Answers are part of the setup."""
    for family, method in (("bart", "full"), ("t5", "lora")):
        with subtests.test(family):
            asked = loaded(family, {"training.per_device_train_batch_size": 8, "tuning.method": method})
            context = gather(asked)
            half = with_settings(asked, {"training.per_device_train_batch_size": 4})
            assert planned_memory_bytes(context, micro_batch=4) == gather(half).required_plan.memory_bytes.value
            assert planned_memory_bytes(context) == context.required_plan.memory_bytes.value
            assert context.required_plan.training_setup.target_tokens > 0


# Runs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(("family", "method"), [("t5", "full"), ("bart", "lora")])
def test_a_run_learns_and_its_model_answers_with_plain_libraries(family, method, loaded, tiny_folder):
    folder = finish(loaded(family, {"tuning.method": method}))
    assert not of_kind(folder, RunProblem)
    steps, [evaluation] = of_kind(folder, StepDone), of_kind(folder, EvalDone)
    assert steps[-1].loss < 0.8 * steps[0].loss
    assert {*evaluation.scores} >= {"rouge1", "rouge2", "rougeL", "exact_match"}
    assert all(0 <= score <= 1 for name, score in evaluation.scores.items() if name != "answer_length")
    [baselines] = of_kind(folder, BaselinesMeasured)
    assert baselines.losses["unigram"] > 0
    assert baselines.scores["rouge1 of the first 2 words"] == 0
    [sample] = of_kind(folder, TextSampled)
    assert "said the" in sample.prompt and "(expected: the " in sample.text
    if method == "full":
        model = AutoModelForSeq2SeqLM.from_pretrained(folder.model)
    else:
        from peft import PeftModel

        assert json.loads((folder.model / "adapter_config.json").read_text())["task_type"] == "SEQ_2_SEQ_LM"
        model = PeftModel.from_pretrained(AutoModelForSeq2SeqLM.from_pretrained(tiny_folder(family)), folder.model)
    tokenizer = AutoTokenizer.from_pretrained(folder.model)
    ids = tokenizer("3 plus 4, said the goat number 3.", return_tensors="pt")["input_ids"]
    written = model.eval().generate(input_ids=ids, max_new_tokens=12, do_sample=False)
    assert tokenizer.decode(written[0], skip_special_tokens=True)
    assert held_out_loss(model, evaluation, folder) == pytest.approx(evaluation.loss, rel=1e-4)


def held_out_loss(model, evaluation: EvalDone, folder) -> float:
    """Return the held-out loss of the saved model, computed by transformers."""
    [path] = (folder.root.parent.parent / "home" / "cache").rglob("eval.arrow")
    rows = examples(path)
    assert evaluation.tokens == sum(len(row.labels) for row in rows)
    with torch.inference_mode():
        return float(direct(model, rows)) / evaluation.tokens


# What is refused ------------------------------------------------------------------------------------------------------


BAD_INPUT = [
    ({}, [*pairs(4), {"article": "a", "summary": None}], ("pairs.jsonl, line 5", "'summary' is null")),
    ({}, [*pairs(4), {"article": "a", "summary": ""}], ("pairs.jsonl, line 5", "'summary' is empty")),
    ({}, [{"article": "a", "sumary": "b"}] * 4, ("pairs.jsonl:", 'data.target_column = "sumary"')),
    ({"data.target_column": "sumary"}, None, ("no column 'sumary'", "did you mean 'summary'?")),
    ({"data.path": "sample:python-reference"}, None, ("is text, but this task reads a table",)),
    ({"training.mixed_precision": "fp16"}, None, ("training.mixed_precision", "t5 overflows in fp16", "auto")),
    ({"model.dtype": "float16", "tuning.method": "lora"}, None, ("model.dtype", "t5 overflows in fp16")),
    (
        {"evaluation.metric_for_best_model": "rougeL", "evaluation.generate_rows": 0},
        None,
        ("evaluation.generate_rows", "rougeL needs generated answers"),
    ),
]


def test_bad_input_is_refused_in_one_line_before_there_is_a_run(tmp_path, tiny_folder, capsys, subtests):
    for changes, rows, words in BAD_INPUT:
        with subtests.test(" ".join(words)):
            data = write_rows(tmp_path / "pairs.jsonl", pairs() if rows is None else rows)
            own = {"data.path": data, "model.model_name_or_path": tiny_folder("t5")}
            assert main(["train", "--no-ui", *set_options(SETTINGS, own, changes)]) == 2
            messages = [line for line in capsys.readouterr().err.splitlines() if "fp16 needs a GPU" not in line]
            assert len(messages) == 1 and all(word in messages[0] for word in words), messages
            assert not list(tmp_path.glob("runs/*"))


def test_an_answer_longer_than_the_positions_of_bart_is_refused(loaded):
    problems = TASK.problems(loaded("bart", {"task.max_target_length": 200}).config)
    assert [(problem.key, problem.hint) for problem in problems] == [
        ("task.max_target_length", "set it to 128 or less")
    ]


def test_bad_rows_can_be_skipped(loaded, tmp_path):
    rows = [*pairs(6), {"article": "a", "summary": None}]
    changes = {"data.on_bad_rows": "skip", "data.eval_fraction": 0}
    data, found = prepared(loaded("t5", changes, rows).config, tmp_path)
    assert (len(found), data.counts.bad_rows) == (6, 1)


@pytest.mark.full
def test_a_card_without_bf16_computes_t5_in_fp32_and_bart_in_fp16(loaded):
    from tests.planning.test_profiles_on_machines import machine

    hardware = machine("Tesla T4", (7, 5), 15360)
    target = choices.TrainingDevice.of(hardware)
    for family, wanted in (("t5", "fp32"), ("bart", "fp16")):
        config = loaded(family)
        found = choices.precision(config, hardware, target, TASK.model_shape(config.config, 0))
        assert found.value == wanted
        assert ("overflow" in found.reason) == (family == "t5")


def test_a_model_without_a_token_that_begins_answers_is_refused():
    model = tiny_model("t5")
    model.config.decoder_start_token_id = model.config.bos_token_id = None
    with pytest.raises(ConfigError, match="decoder_start_token_id"):
        TASK.collate(model, 0)


def test_rows_of_one_batch_do_not_depend_on_their_neighbours():
    """Padding changes neither the loss of a row nor the inputs of its decoder."""
    model, rows = tiny_model("bart"), token_rows()
    collate, loss = TASK.collate(model, 1), NextTokenLoss(model)
    alone = sum(loss(micro_batch(collate([row]))).item() for row in rows)
    wide = loss(micro_batch(collate(rows, width=40)))
    assert wide.item() == pytest.approx(alone, rel=1e-5)
    assert micro_batch(collate(rows)).token_count == sum(len(row.tokens) for row in rows)
