"""Tokens that are added to a model: what they cost, what they learn, and that every use of the result has them."""

from __future__ import annotations

import json

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AddedToken, AutoModelForCausalLM, AutoTokenizer

from tests.tiny_models import VOCABULARY, save_tiny_byte_model, save_tiny_model, save_tiny_model_with_towers, texts
from tests.trained_runs import write_rows
from tests.training.finished_runs import STILL, assert_resumes_to_the_bit, loss_of, of_kind, weights_in
from tui_trainer.errors import ConfigError
from tui_trainer.exporting.formats import merged
from tui_trainer.exporting.trained_model import TrainedModel, load_tokenizer
from tui_trainer.launching.open_run import open_new
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.planning.plan_file import read_plan_file
from tui_trainer.runs.events import StepDone

FROM, TOKENS, METHOD = "model.model_name_or_path", "model.add_tokens", "tuning.method"
NEW = ("<|sheep|>", "said the", "agreed")
ROWS = 448  # 384 and 3, up to a multiple of 64
ASKED = {TOKENS: ",".join(NEW), "profile": "finetune", "model.init": "pretrained"}
LORA = {METHOD: "lora", "tuning.r": 4}
WHOLE = {**LORA, "tuning.modules_to_save": '"embed_tokens,lm_head"'}


@pytest.fixture
def rows(tmp_path):
    """Twelve documents, all of which are one batch."""
    return write_rows(tmp_path / "rows.jsonl", [{"text": f"<|sheep|> {text}"} for text in texts(12)])


@pytest.fixture
def settings(tmp_path, rows):
    """`settings(family, changes)`: of a run on all rows in each step."""

    def make(family="llama", changes=None):
        folder = tmp_path / family
        where = folder if folder.exists() else save_tiny_model(folder, family)
        return {
            **ASKED, FROM: where, "data.path": rows, "data.max_length": 64, "data.eval_fraction": 0, **(changes or {}),
        }  # fmt: skip

    return make


@pytest.fixture
def train(tiny_config, settings):
    """`train(name, family, changes)`: the folder of a finished run with held-out rows."""

    def make(name, family="llama", changes=None):
        run = open_new(tiny_config(name, {**settings(family), "data.eval_fraction": 0.25, **(changes or {})}))
        outcome = execute_run(run)
        assert outcome.exit_code == 0, outcome
        return run.folder

    return make


def bare_model(folder):
    """Return a tokenizer and a model with the tokens added by transformers; new rows are the mean of the old ones."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    marks = [AddedToken(token, normalized=False, special=token.startswith("<|")) for token in NEW]
    assert tokenizer.add_tokens(marks) == len(NEW)
    model.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=64, mean_resizing=False)
    for table in {model.get_input_embeddings().weight, model.get_output_embeddings().weight}:
        table.data[VOCABULARY:] = table.data[:VOCABULARY].mean(0)
    return tokenizer, model


def bare_losses(tokenizer, model, path, steps):
    """Return the losses of a plain loop of torch and transformers over all rows."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01, weight_decay=0.0)
    lines = [json.loads(line)["text"] for line in path.read_text().splitlines()]
    ids = [torch.tensor([[*tokenizer(line)["input_ids"], tokenizer.eos_token_id]]) for line in lines]
    losses = []
    for _ in range(steps):
        logits = [model(row[:, :-1]).logits[0] for row in ids]
        labels = [row[0, 1:] for row in ids]
        loss = torch.nn.functional.cross_entropy(torch.cat(logits), torch.cat(labels))
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
        optimizer.step()
    return losses


ALL_ROWS = {
    "training.effective_batch_size": 12, "training.max_steps": 4, "training.lr_scheduler_type": "constant",
    "training.warmup_steps": 0, "training.learning_rate": 0.01,
}  # fmt: skip


@pytest.mark.versions  # peft writes rows into a copy of the table, by names of its own
@pytest.mark.parametrize(
    ("family", "method", "chunks"),  # tied and separate tables of the head and the embedding
    [("llama", "lora", 16), *(pytest.param(*case, marks=pytest.mark.full) for case in (
        ("llama", "full", 0), ("qwen2", "full", 16), ("qwen2", "lora", 0)))],
)  # fmt: skip
def test_losses_equal_those_of_a_plain_loop_with_the_same_tokens(tiny_run, settings, rows, family, method, chunks):
    more = {METHOD: method, "training.loss_chunk_tokens": chunks, **ALL_ROWS, **(LORA if method == "lora" else {})}
    run, outcome = tiny_run(method, settings(family, more))
    assert outcome.exit_code == 0, outcome
    tokenizer, model = bare_model(settings(family)[FROM])
    if method == "lora":
        ids = list(range(VOCABULARY, VOCABULARY + len(NEW)))
        names = ["model.embed_tokens"] if family == "llama" else ["model.embed_tokens", "lm_head"]
        torch.manual_seed(42)
        wanted = LoraConfig(
            task_type="CAUSAL_LM", r=4, lora_alpha=32, target_modules="all-linear",
            trainable_token_indices={name: ids for name in names},
        )  # fmt: skip
        model = get_peft_model(model, wanted)
    found = [event.loss for event in of_kind(run, StepDone)]
    assert found == pytest.approx(bare_losses(tokenizer, model, rows, 4), abs=1e-5)
    assert found[-1] < found[0]


@pytest.mark.full
def test_a_fully_tuned_model_has_the_rows_and_a_tokenizer_with_the_tokens(train):
    run = train("full", changes={METHOD: "full"})
    model, tokenizer = AutoModelForCausalLM.from_pretrained(run.model), AutoTokenizer.from_pretrained(run.model)
    assert model.config.vocab_size == len(model.get_input_embeddings().weight) == ROWS
    assert tokenizer.convert_tokens_to_ids(list(NEW)) == [384, 385, 386]
    ids = tokenizer("12 sheep, said the <|sheep|>")["input_ids"]
    assert 385 in ids and 384 in ids
    # Chat markers are special tokens, words are not.
    assert tokenizer.decode([384, 385], skip_special_tokens=True) == "said the"
    plan = read_plan_file(run.plan.read_bytes())
    assert plan.vocabulary.value == 387 and plan.parameters.value == sum(p.numel() for p in model.parameters())
    assert "new tokens in model.add_tokens: 3; the embedding grows from 384 to 448 rows" in plan.parameters.reason
    card = (run.model / "README.md").read_text()
    assert "vocabulary has 387 tokens" in card and "added tokens" in card


def assert_merged_and_written_with_its_rows(run, folder):
    trained = TrainedModel.of(run)
    ids = torch.tensor([[1, 384, 40, 385, 386]])
    with torch.no_grad():
        logits = trained.load()(ids).logits
        assert logits.shape[-1] == ROWS
        assert torch.allclose(trained.load(merge=True)(ids).logits, logits, atol=1e-4)
        folder.mkdir()
        merged.FORMAT.write(trained, folder, lambda *_: None)
        whole = AutoModelForCausalLM.from_pretrained(folder)
        assert whole.config.vocab_size == ROWS
        assert torch.allclose(whole(ids).logits, logits, atol=1e-4)


@pytest.mark.full
@pytest.mark.versions
@pytest.mark.parametrize(("family", "tables"), [("llama", 1), ("qwen2", 2)])
def test_beside_an_adapter_only_the_rows_of_new_tokens_train(train, family, tables, tmp_path):
    run = train("lora", family, LORA)
    tensors = weights_in(run)
    trained = {name: tensor for name, tensor in tensors.items() if "trainable_tokens" in name}
    assert [tuple(tensor.shape) for tensor in trained.values()] == [(3, 32)] * tables
    plan = read_plan_file(run.plan.read_bytes())
    assert plan.trained_parameters.value == sum(tensor.numel() for tensor in tensors.values())
    assert plan.training_setup.trained_tokens == 3
    assert "token tables" in {part.name for part in plan.memory_parts}
    # Plain peft puts it on the model as its card says.
    base, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path / family), load_tokenizer(TrainedModel.of(run))
    base.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=64)
    plain = PeftModel.from_pretrained(base, run.model).eval()
    mine = TrainedModel.of(run).load()
    ids = torch.tensor([[1, 384, 40, 385, 386]])
    with torch.no_grad():
        assert torch.allclose(plain(ids).logits[..., :387], mine(ids).logits[..., :387], atol=1e-4)
    assert_merged_and_written_with_its_rows(run, tmp_path / "written")


@pytest.mark.full
def test_whole_tables_beside_an_adapter_are_merged_written_and_continued(train, tmp_path):
    run = train("first", "qwen2", WHOLE)
    assert_merged_and_written_with_its_rows(run, tmp_path / "written")
    still = train("still", changes={FROM: "last", TOKENS: "", METHOD: "lora", **STILL})
    assert loss_of(still) == pytest.approx(loss_of(run), abs=1e-5)


@pytest.mark.full
def test_an_adapter_is_continued_and_merged_with_its_tokens(train, tiny_config):
    first = train("first", "qwen2", LORA)
    refused = refusal(tiny_config, {FROM: "first", TOKENS: "cow", METHOD: "lora"})
    assert "the adapter to continue has no embedding rows for cow" in refused
    more = {FROM: "last", TOKENS: ""}
    still = train("still", changes={**more, METHOD: "lora", **STILL})
    assert loss_of(still) == pytest.approx(loss_of(first), abs=1e-5)
    names = weights_in(first).keys()
    assert weights_in(still).keys() == names
    merged = train("merged", changes={**more, FROM: "first", METHOD: "full", **STILL})
    assert loss_of(merged) == pytest.approx(loss_of(first), abs=1e-5)
    # The tokens that the adapter has are known by now.
    again = train("again", changes={FROM: "first", METHOD: "lora", **STILL})
    assert loss_of(again) == pytest.approx(loss_of(first), abs=1e-5)
    # A merged model can get more tokens.
    last = train("last-one", changes={FROM: "merged", METHOD: "full", TOKENS: "cow, horse", **STILL})
    assert AutoTokenizer.from_pretrained(last.model).convert_tokens_to_ids(["agreed", "cow"]) == [386, 387]


def test_an_adapter_with_tokens_in_spare_rows_is_continued(train, tmp_path):
    """No config.json lies beside it: its base model has as many rows as before."""
    first = train("first", changes={FROM: save_tiny_model(tmp_path / "spare", "llama", vocab_size=ROWS), **LORA})
    assert not (first.model / "config.json").exists()
    again = train("again", changes={FROM: "first", TOKENS: "", METHOD: "lora", **STILL})
    assert loss_of(again) == pytest.approx(loss_of(first), abs=1e-5)


@pytest.mark.full
def test_a_run_with_new_tokens_is_resumed_to_the_bit(tiny_run, settings):
    changes = settings("llama", {**LORA, "tuning.lora_dropout": 0.1, "data.eval_fraction": 0.25})
    assert_resumes_to_the_bit(tiny_run, changes)


@pytest.mark.full
def test_spare_rows_of_the_table_are_used_first(train, tmp_path):
    """The table of Qwen is larger than its tokenizer."""
    folder = save_tiny_model(tmp_path / "spare", "llama", vocab_size=ROWS)
    run = train("spare", changes={FROM: folder, METHOD: "full", **STILL})
    name = "model.embed_tokens.weight"
    before, after = (load_file(one / "model.safetensors")[name] for one in (folder, run.model))
    assert before.shape == after.shape and AutoTokenizer.from_pretrained(run.model).get_added_vocab()["agreed"] == 386
    assert torch.allclose(after[384:387], before[:384].mean(0).expand(3, -1), atol=1e-6)
    assert torch.allclose(after[387:], before[387:], atol=1e-6)


def test_data_is_prepared_again_for_other_tokens_and_counted_with_them(tiny_config, settings):
    plain, with_tokens = (
        estimated_plan(tiny_config("x", settings(changes={TOKENS: tokens, METHOD: "full"})))
        for tokens in ("", ASKED[TOKENS])
    )
    assert with_tokens.train_tokens.value < plain.train_tokens.value
    assert with_tokens.parameters.value - plain.parameters.value == 64 * 32


def test_a_file_of_tokens_is_read_once_and_may_be_deleted(tiny_config, settings, tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("agreed\n\n  a, b\n")
    loaded = tiny_config("x", settings(changes={TOKENS: path, METHOD: "full"}))
    path.unlink()
    assert loaded.config.model.add_tokens == "agreed, a\\, b"
    assert "new tokens in model.add_tokens: 2" in estimated_plan(loaded).parameters.reason


def refusal(tiny_config, changes):
    with pytest.raises(ConfigError) as refused:
        open_new(tiny_config("refused", {**ASKED, **changes}))
    return str(refused.value)


REFUSED = [
    ({"model.init": "scratch", METHOD: "full"}, "the tokens of a model from scratch come from its data"),
    ({FROM: "", "task.type": "char_lm", "profile": "char-lm"}, "the characters of a model from scratch"),
    ({TOKENS: "a b, a b"}, "the token 'a b' is listed twice"),
    ({TOKENS: ","}, "the setting has no tokens"),
    ({TOKENS: "/nowhere/words.txt"}, "/nowhere/words.txt cannot be read"),
    ({METHOD: "full", "tuning.trainable_layers": "last 1"}, "tuning.trainable_layers freezes the embedding"),
    ({"model.provider": "unsloth", **LORA}, "is not supported with model.provider = unsloth"),
    ({FROM: "qwen2", **LORA, "tuning.modules_to_save": "embed_tokens"},
     "with tuning.modules_to_save = embed_tokens, new tokens are trained in only one of embedding and head"),
    ({FROM: "phi", **LORA}, "the head has a bias, which peft drops"),
]  # fmt: skip


def test_models_that_cannot_get_tokens_are_refused_with_the_reason(tiny_config, tmp_path, subtests):
    folders = {name: save_tiny_model(tmp_path / name, name) for name in ("llama", "qwen2", "phi")}
    for changes, words in REFUSED:
        name = changes.get(FROM, "llama")
        with subtests.test(words):
            assert words in refusal(tiny_config, {**changes, FROM: folders[name]} if name else changes)


@pytest.mark.full
def test_other_tokenizers_and_towers_are_refused(tiny_config, tmp_path):
    byt5 = save_tiny_byte_model(tmp_path / "byt5", "byt5")
    pairs = write_rows(tmp_path / "pairs.jsonl", [{"text": "a", "target": "b"}] * 8)
    words = refusal(tiny_config, {FROM: byt5, "task.type": "seq2seq", "data.path": pairs, METHOD: "full"})
    assert "adding tokens needs a tokenizer.json, which this model's tokenizer does not have" in words
    towers = save_tiny_model_with_towers(tmp_path / "gemma3", "gemma3")
    assert "whose embedding belongs to a nested language model" in refusal(tiny_config, {FROM: towers, METHOD: "full"})


@pytest.mark.full
def test_words_that_are_one_token_already_are_named_and_kept(train):
    run = train("known", changes={METHOD: "full", TOKENS: "plus, agreed", **STILL})
    tokenizer = AutoTokenizer.from_pretrained(run.root.parents[1] / "llama")
    single = [word for word in ("plus", "agreed") if len(tokenizer(word)["input_ids"]) == 1]
    reason = read_plan_file(run.plan.read_bytes()).parameters.reason
    assert (f"already in the vocabulary: {len(single)} ({', '.join(single)})" in reason) == bool(single)
    assert len(AutoTokenizer.from_pretrained(run.model)) == len(tokenizer) + 2 - len(single)


@pytest.mark.full
@pytest.mark.parametrize(("family", "method"), [("bert", "lora"), ("roberta", "full")])
def test_encoders_get_tokens_as_well(tiny_config, tmp_path, family, method):
    data = write_rows(
        tmp_path / "labels.jsonl",
        [{"text": f"<|sheep|> {text}", "label": str(n % 2)} for n, text in enumerate(texts(48))],
    )
    changes = {
        **ASKED, FROM: save_tiny_model(tmp_path / family, family), "task.type": "sequence_classification",
        "data.path": data, "data.max_length": 64, METHOD: method,
    }  # fmt: skip
    run = open_new(tiny_config("labels", changes))
    outcome = execute_run(run)
    assert outcome.exit_code == 0, outcome
    trained = TrainedModel.of(run.folder)
    # BERT's knows the third.
    known = load_tokenizer(trained).convert_tokens_to_ids(list(NEW[:2]))
    assert known[1] == known[0] + 1
    ids = torch.tensor([[3, *known, 4]])
    with torch.no_grad():
        logits = trained.load()(ids).logits
        assert logits.isfinite().all() and logits.shape == (1, 2)
        rows = max(VOCABULARY, -(-(known[-1] + 2) // 64) * 64)
        assert trained.load().get_input_embeddings().weight.shape[0] == rows
    still = open_new(tiny_config("still", {**changes, FROM: "labels", TOKENS: "", **STILL}))
    assert execute_run(still).exit_code == 0
    assert loss_of(still.folder) == pytest.approx(loss_of(run.folder), abs=1e-5)
