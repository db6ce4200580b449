"""A run that starts from the result of another: where it begins, what it reports of its origin, and what is refused."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.runs.journals import read_all
from tests.tiny_models import save_tiny_model
from tests.trained_runs import write_rows
from tests.training.finished_runs import (
    STILL,
    assert_resumes_to_the_bit,
    loss_of,
    of_kind,
    stopped_run,
    weights_in,
)
from tui_trainer.errors import ConfigError, FolderError
from tui_trainer.exporting.trained_model import TrainedModel
from tui_trainer.launching.open_run import open_new, reopen_run
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.lines.plan_and_events import plan_lines
from tui_trainer.planning.plan_file import read_plan_file
from tui_trainer.runs import delete_and_rename
from tui_trainer.runs.events import RunProblem
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.overview import overview
from tui_trainer.runs.registry import add_to_index
from tui_trainer.runs.state import apply_events

FROM = "model.model_name_or_path"


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """`base(family)`: the folder of a tiny model, made once."""
    place = tmp_path_factory.mktemp("bases")
    return lambda family: place / family if (place / family).exists() else save_tiny_model(place / family, family)


@pytest.fixture
def copied(reference_run, tmp_path):
    """`copied(name, changes)`: the copy of a run that is trained once for all tests."""

    def make(name, changes):
        root = shutil.copytree(reference_run(changes).root, tmp_path / "runs" / name)
        add_to_index(root)
        return RunFolder(root)

    return make


@pytest.fixture
def go_on(tiny_config, base, copied):
    """`go_on(name, changes)`: a finished run that starts from a model; from a tiny Llama if none is named."""

    def make(name, changes=None):
        changes = {"model.init": "pretrained", "tuning.r": 4, "profile": "finetune", **(changes or {})}
        if changes.get("tuning.method") == "full":
            del changes["tuning.r"]
        changes.setdefault(FROM, base("llama"))
        if str(changes[FROM]).startswith(str(base("llama").parent)):
            return copied(name, changes)
        run = open_new(tiny_config(name, changes))
        assert execute_run(run).exit_code == 0
        return run.folder

    return make


def plan_of(run):
    return read_plan_file(run.plan.read_bytes())


@pytest.mark.full
def test_a_finished_run_is_found_by_its_name_or_path_and_refused_once_it_changed(go_on, tiny_config, tmp_path):
    first = go_on("first", {"tuning.method": "full", **STILL})
    for reference in (str(first.root), "first", "fir", "last"):
        loaded = tiny_config("second", {FROM: reference, "profile": "finetune"})
        assert loaded.config.model.model_name_or_path == str(first.model), reference
        assert any("the final model of the run first" in note for note in loaded.notes), reference
    # A folder with a model is a model.
    assert tiny_config("x", {FROM: str(first.model)}).config.model.model_name_or_path == str(first.model)
    save_tiny_model(tmp_path / "first", "gpt2")
    assert tiny_config("x", {FROM: "first"}).config.model.model_name_or_path == str(tmp_path / "first")
    shutil.rmtree(tmp_path / "first")

    config = json.loads((first.model / "config.json").read_bytes())
    (first.model / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
    with pytest.raises(ConfigError, match=r"the folder `model` has changed since the run wrote it: config\.json"):
        open_new(tiny_config("second", {FROM: "first", "profile": "finetune"}))
    add_to_index(shutil.copytree(first.root, first.root.with_name("firsts")))
    with pytest.raises(ConfigError, match="'fir' matches 2 runs"):
        tiny_config("second", {FROM: "fir"})
    shutil.rmtree(first.model)
    with pytest.raises(ConfigError, match="the folder `model` of this run is gone"):
        tiny_config("second", {FROM: "first"})


@pytest.mark.full
def test_each_run_of_a_chain_begins_where_the_one_before_ended_and_names_the_chain(go_on):
    """All weights, then LoRA, then the same adapter: each run begins with the loss with which the one before ended."""
    full = go_on("full", {"tuning.method": "full"})
    lora = go_on("lora", {FROM: "full", "tuning.method": "lora"})
    still = go_on("still", {FROM: "lora", "tuning.method": "lora", **STILL})
    assert loss_of(still) == pytest.approx(loss_of(lora), abs=1e-6)
    continued = go_on("continued", {FROM: "last", "tuning.method": "lora"})
    plan = plan_of(continued)
    assert [(one.name, one.method, one.taken) for one in plan.ancestors[1:]] == [
        ("full", "full", ""), ("lora", "lora", "continued"), ("still", "lora", "continued"),
    ]  # fmt: skip
    assert loss_of(continued) < loss_of(lora)
    assert weights_in(still).keys() == weights_in(continued).keys()
    fields = [json.loads((run.model / "adapter_config.json").read_bytes()) for run in (lora, continued)]
    for one in fields:
        one["target_modules"] = sorted(one["target_modules"])
    # The adapter still belongs to the same model.
    assert fields[0] == fields[1] and fields[0]["base_model_name_or_path"] == str(full.model)
    trained = TrainedModel.of(continued)
    assert trained.base == full.model and trained.base_model() == (still.model, "")
    # Its card and its report name the chain, which is kept after the runs are deleted.
    chain = "llama > run full (all weights, 10 steps) > run lora (LoRA, 10 steps, continued) > run still ("
    assert overview(continued).came_from.startswith(chain) and overview(full).came_from == ""
    card = (continued.model / "README.md").read_text()
    assert "run lora (LoRA, 10 steps" in card and str(full.root.parent) not in card
    assert chain in continued.report.read_text().replace("&gt;", ">")
    shutil.rmtree(full.root)
    assert [one.name for one in plan_of(continued).ancestors[1:]] == ["full", "lora", "still"]


@pytest.mark.full
def test_an_adapter_is_merged_and_all_weights_are_trained(go_on):
    lora = go_on("lora", {"tuning.method": "lora"})
    still = go_on("still", {FROM: "lora", "tuning.continue_adapter": "merge", **STILL})
    assert plan_of(still).config.tuning.method == "full"
    assert loss_of(still) == pytest.approx(loss_of(lora), abs=1e-5)
    merged = TrainedModel.of(lora).load(merge=True).state_dict()
    for name, tensor in weights_in(still).items():
        assert torch.allclose(tensor, merged[name], atol=1e-6), name
    whole = go_on("whole", {FROM: "lora", "tuning.method": "full"})
    assert plan_of(whole).ancestors[-1].taken == "merged"
    moved = weights_in(whole)
    assert all(not torch.equal(tensor, merged[name]) for name, tensor in moved.items())
    assert not (whole.model / "adapter_config.json").exists()
    again = go_on("again", {FROM: "whole", "tuning.method": "lora", **STILL})
    assert loss_of(again) == pytest.approx(loss_of(whole), abs=1e-5)


@pytest.mark.full
def test_unset_settings_are_those_of_the_adapter(go_on, tiny_config):
    made = {"tuning.method": "lora", "tuning.r": 2, "tuning.lora_alpha": 7, "tuning.target_modules": '"q_proj, o_proj"'}
    go_on("lora", {**made, "tuning.use_rslora": "true", "tuning.modules_to_save": "embed_tokens"})
    tuning = tiny_config("next", {FROM: "lora", "profile": "finetune"}).config.tuning
    assert (tuning.method, tuning.r, tuning.lora_alpha, tuning.use_rslora) == ("lora", 2, 7.0, True)
    assert set(tuning.target_modules.split(", ")) == {"q_proj", "o_proj"} and tuning.modules_to_save == "embed_tokens"
    still = go_on("still", {FROM: "lora", "tuning.r": 2, **STILL})
    assert loss_of(still) == pytest.approx(overview_of("lora", still).eval_loss, abs=1e-6)


def overview_of(name, other):
    return overview(RunFolder(other.root.with_name(name)))


def test_an_adapter_is_continued_with_its_own_settings_only(adapted_run, tiny_config, subtests):
    rows = [
        ("tuning.r", 8, "tuning.r: is 8, but the adapter to continue has 16"),
        ("tuning.lora_alpha", 5, "is 5, but the adapter to continue has 32"),
        ("tuning.target_modules", "q_proj", "is q_proj, but the adapter to continue has all-linear"),
        ("tuning.use_rslora", "true", "is true, but the adapter to continue has false"),
        ("tuning.use_dora", "true", "is true, but the adapter to continue has false"),
        ("tuning.modules_to_save", "embed_tokens", "is embed_tokens, but the adapter to continue has empty"),
        ("tuning.method", "full", "tuning.method: is full, which trains all weights and cannot continue an adapter"),
        ("model.provider", "unsloth", "unsloth can only start from a full model"),
    ]
    for setting, value, words in rows:
        with subtests.test(setting):
            changes = {"tuning.method": "lora", "tuning.continue_adapter": "continue", setting: value}
            assert words in refusal_of(tiny_config, {FROM: adapted_run.model, **changes})


def refusal_of(tiny_config, changes):
    with pytest.raises(ConfigError) as refused:
        open_new(tiny_config("refused", {"profile": "finetune", "model.init": "pretrained", **changes}))
    return str(refused.value)


def test_an_adapter_that_cannot_be_continued_is_refused_with_the_reason(adapted_run, tiny_config, subtests):
    rows = [
        ({"peft_type": "IA3"}, "the adapter has the type IA3, but only LoRA can be continued"),
        ({"init_lora_weights": "pissa_niter_4"}, "was initialised by pissa_niter_4, a method that also changes"),
        ({"task_type": "SEQ_CLS"}, "the adapter was trained for SEQ_CLS, but this task needs CAUSAL_LM"),
        ({"rank_pattern": {"q_proj": 2}}, "has rank_pattern = {'q_proj': 2}, which has no matching setting"),
        ({"bias": "all"}, "the adapter has bias = 'all', which has no matching setting"),
        ({"base_model_name_or_path": ""}, "the adapter does not name its base model"),
        ({"base_model_name_or_path": "/nowhere/llama"}, "the adapter is for /nowhere/llama: the folder /nowhere"),
        ({"base_model_name_or_path": "nobody/llama"}, "the model nobody/llama is not on this machine"),
    ]
    # A copy, as of an adapter that was trained elsewhere: no run knows what its files were.
    folder = shutil.copytree(adapted_run.model, adapted_run.root.parent / "foreign")
    written = json.loads((folder / "adapter_config.json").read_bytes())
    for fields, words in rows:
        (folder / "adapter_config.json").write_text(json.dumps(written | fields))
        with subtests.test(str(fields)):
            assert words in refusal_of(tiny_config, {FROM: folder, "tuning.method": "lora"})


@pytest.mark.full
def test_an_adapter_of_another_program_is_continued_and_merged(go_on, adapted_run):
    folder = shutil.copytree(adapted_run.model, adapted_run.root.parent / "foreign")
    losses = [
        loss_of(go_on(name, {FROM: folder, "tuning.r": 16, "tuning.continue_adapter": name, **STILL, **more}))
        for name, more in (("continue", {}), ("merge", {"tuning.method": "full"}))
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


@pytest.mark.full
def test_an_adapter_on_a_changed_model_is_refused(go_on, tiny_config):
    full = go_on("full", {"tuning.method": "full"})
    lora = go_on("lora", {FROM: "full", "tuning.method": "lora"})
    weights = full.model / "model.safetensors"
    save_file({name: tensor + 1e-3 for name, tensor in load_file(weights).items()}, weights, metadata={"format": "pt"})
    for method in ("lora", "full"):
        words = refusal_of(tiny_config, {FROM: str(lora.root), "tuning.method": method})
        assert f"the adapter was not trained on the weights in {full.model}" in words


@pytest.mark.full
def test_a_missing_adapter_or_missing_weights_are_refused(go_on, tiny_config, adapted_run):
    words = refusal_of(tiny_config, {FROM: adapted_run.model, "tuning.method": "full", "model.init": "scratch"})
    assert "an adapter needs pretrained weights" in words
    full = go_on("full", {"tuning.method": "full"})
    words = refusal_of(tiny_config, {FROM: "full", "tuning.continue_adapter": "continue"})
    assert 'is "continue", but the model to start from is not an adapter' in words
    folder = shutil.copytree(adapted_run.model, full.root.parent / "foreign")
    (folder / "adapter_model.safetensors").unlink()
    assert "the adapter has no adapter_model.safetensors" in refusal_of(tiny_config, {FROM: folder})


@pytest.mark.full
@pytest.mark.parametrize("how", ["continue", "merge"])
def test_a_run_that_starts_from_an_adapter_is_resumed_to_the_bit(go_on, tiny_run, how):
    go_on("lora", {"tuning.method": "lora"})
    method = "lora" if how == "continue" else "full"
    changes = {FROM: "lora", "profile": "finetune", "tuning.method": method, "tuning.continue_adapter": how}
    changes |= {"tuning.lora_dropout": 0.1} if how == "continue" else {}
    assert_resumes_to_the_bit(tiny_run, changes)


@pytest.fixture
def classify(base, go_on):
    """`classify(name, labels, changes)`: a finished classifier of texts, from a tiny BERT if no model is named."""

    def make(name, labels, changes):
        rows = [
            {"text": f"a {labels[n % len(labels)]} and {n} more", "label": labels[n % len(labels)]} for n in range(48)
        ]
        data = write_rows(base("bert").parent / f"{'-'.join(labels)}.jsonl", rows)
        task = {"data.path": data, "task.type": "sequence_classification", "data.max_length": 32}
        return go_on(name, {FROM: base("bert"), **task, **changes})

    return make


ANIMALS = ("cat", "dog", "owl")


@pytest.mark.full
@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_classifier_keeps_the_head_of_its_labels(classify, method):
    first = classify("first", ANIMALS, {"tuning.method": method})
    still = classify("still", ANIMALS, {FROM: "first", "tuning.method": method, **STILL})
    assert loss_of(still) == pytest.approx(loss_of(first), abs=1e-5)
    assert not [one for one in of_kind(still, RunProblem) if one.kind == "new weights"]
    assert plan_of(first).head is None and plan_of(still).head.value == "kept"


@pytest.mark.full
def test_other_labels_need_the_adapter_of_a_classifier_to_be_merged(classify, base):
    first = classify("first", ANIMALS, {"tuning.method": "lora"})
    merged = classify("merged", ANIMALS, {FROM: "first", "tuning.method": "full", **STILL})
    assert loss_of(merged) == pytest.approx(loss_of(first), abs=1e-5)
    others = ("ant", "bee", "fly", "wasp")
    new = classify("new", others, {FROM: "first", "tuning.method": "full"})
    messages = [one.message for one in of_kind(new, RunProblem) if one.kind == "new weights"]
    assert any("newly initialised" in one for one in messages)
    assert json.loads((new.model / "config.json").read_bytes())["id2label"] == dict(zip("0123", others, strict=True))
    body = "bert.encoder.layer.0.output.dense.weight"
    adapted = TrainedModel.of(first).load(merge=True).state_dict()[body]
    trained = weights_in(new)[body]
    assert (trained - adapted).abs().max() < (
        trained - load_file(base("bert") / "model.safetensors")[body]
    ).abs().max() * 2
    with pytest.raises(AssertionError):
        classify("refused", others, {FROM: "first", "tuning.method": "lora"})
    failed = apply_events(read_all(RunFolder(first.root.with_name("refused")).journal)).failed
    assert "the labels of the adapter (cat, dog, owl) differ from those of the data" in failed.message


@pytest.mark.full
@pytest.mark.versions  # it draws by transformers' own `_init_weights`
def test_a_classifier_of_as_many_other_labels_gets_a_new_head_and_reports_it(classify):
    first = classify("first", ANIMALS, {"tuning.method": "full"})
    others = ("ant", "bee", "fly")
    new = classify("new", others, {FROM: "first", "tuning.method": "full", **STILL})
    messages = [one.message for one in of_kind(new, RunProblem) if one.kind == "new weights"]
    assert messages == ["classifier is newly initialised: the model was trained for the labels cat, dog, owl"]
    before, after = (weights_in(run) for run in (first, new))
    changed = {name for name, tensor in after.items() if not torch.allclose(tensor, before[name], atol=1e-6)}
    assert changed == {"classifier.weight", "classifier.bias"}
    assert plan_of(new).head.value == "new"
    assert plan_of(new).head.reason == "the model has the labels cat, dog, owl, but the data has ant, bee, fly"


@pytest.mark.full
def test_a_new_adapter_trains_on_the_merged_model_which_the_run_keeps(go_on, tmp_path):
    lora = go_on("lora", {"tuning.method": "lora"})
    asked = {FROM: "lora", "tuning.method": "lora", "tuning.continue_adapter": "merge", "tuning.r": 2}
    still = go_on("still", {**asked, **STILL})
    assert loss_of(still) == pytest.approx(loss_of(lora), abs=1e-5)
    merged = TrainedModel.of(lora).load(merge=True).state_dict()
    for name, tensor in load_file(still.base / "model.safetensors").items():
        assert torch.allclose(tensor, merged[name], atol=1e-6), name
    fields = json.loads((still.model / "adapter_config.json").read_bytes())
    assert (fields["base_model_name_or_path"], fields["r"]) == (str(still.base), 2)
    alone = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(still.base), still.model)
    ids = torch.arange(3, 19)[None]
    torch.testing.assert_close(alone(input_ids=ids).logits, TrainedModel.of(still).load()(input_ids=ids).logits)
    assert [(one.name, one.taken) for one in plan_of(still).ancestors[1:]] == [("lora", "merged")]
    shutil.rmtree(lora.root)
    further = go_on("further", {FROM: "still", "tuning.r": 2})
    assert (
        overview(further).came_from == "llama > run lora (LoRA, 10 steps, merged) > run still (LoRA, 1 step, continued)"
    )
    assert json.loads((further.model / "adapter_config.json").read_bytes())["base_model_name_or_path"] == str(
        still.base
    )
    with pytest.raises(
        FolderError,
        match="cannot be renamed, because the adapter stores the path of its base model, which is in `base`",
    ):
        delete_and_rename.rename(still.root, "renamed")


@pytest.mark.full
def test_a_run_on_a_merged_model_is_resumed_to_the_bit_and_merges_once(go_on, tiny_run):
    go_on("lora", {"tuning.method": "lora"})
    changes = {FROM: "lora", "profile": "finetune", "tuning.method": "lora", "tuning.continue_adapter": "merge"}
    whole, _ = tiny_run("whole", changes)
    part = stopped_run(tiny_run, "part", changes, step=6)
    before = (part.base / "model.safetensors").stat().st_mtime_ns
    assert execute_run(reopen_run(part)).exit_code == 0
    assert (part.base / "model.safetensors").stat().st_mtime_ns == before
    assert all(torch.equal(tensor, weights_in(part)[name]) for name, tensor in weights_in(whole).items())
    assert not [one for one in of_kind(part, RunProblem) if one.kind == "config edited"]


@pytest.mark.full
def test_a_plan_counts_the_merge(go_on, tiny_config):
    lora = go_on("lora", {"tuning.method": "lora", "tuning.r": 4})
    whole, new = (
        estimated_plan(tiny_config("planned", {FROM: "lora", "profile": "finetune", "tuning.method": method,
                                               "tuning.continue_adapter": "merge"}))
        for method in ("full", "lora")
    )  # fmt: skip
    assert whole.training_setup.merged_parameters == plan_of(lora).trained_parameters.value
    assert "merge" in {part.name for part in whole.memory_parts}
    assert "and the merged base model of the adapter" in new.disk_bytes.reason


@pytest.fixture
def characters_run(copied):
    """A finished character model of 16 positions."""
    return copied("characters", {"task.type": "char_lm"})


@pytest.mark.full
@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_character_model_is_continued_where_it_ended(method, characters_run, tiny_run, tiny_config):
    changes = {FROM: "characters", "tuning.method": method, "tuning.r": 4} if method == "lora" else {FROM: "characters"}
    loaded = tiny_config("still", {**changes, "tuning.method": method})
    assert loaded.config.task.type == "char_lm" and not loaded.config.is_from_scratch
    still, outcome = tiny_run("still", {**changes, "tuning.method": method, **STILL})
    assert outcome.exit_code == 0 and loss_of(still) == pytest.approx(loss_of(characters_run), abs=1e-6)
    assert overview(still).came_from == "run characters (all weights, 10 steps)"
    further, _ = tiny_run("further", {**changes, "tuning.method": method})
    assert loss_of(further) < loss_of(characters_run)
    assert (further.model / "tokenizer.json").read_bytes() == (characters_run.model / "tokenizer.json").read_bytes()


@pytest.mark.full
def test_new_characters_are_refused_with_their_list(characters_run, tiny_run, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("7 times é is Ω, said the 7th sheep.\n" * 40)
    with pytest.raises(ConfigError, match=r"2 characters that are not .*vocabulary: é \(U\+00E9\), Ω \(U\+03A9\)"):
        tiny_run("refused", {FROM: "characters", "data.path": other, "tuning.method": "full"})
    known = tmp_path / "known.txt"
    known.write_text("7 times 7 is 49, said the 7th sheep.\n" * 40)
    fewer, outcome = tiny_run("fewer", {FROM: "characters", "data.path": known, "tuning.method": "full"})
    assert outcome.exit_code == 0
    before, after = (json.loads((run.model / "config.json").read_bytes()) for run in (characters_run, fewer))
    assert before["vocab_size"] == after["vocab_size"]


@pytest.mark.full
def test_a_model_of_other_tokens_is_no_character_model(go_on, tiny_config, characters_run):
    go_on("words", {"tuning.method": "full"})
    words = refusal_of(tiny_config, {FROM: "words", "task.type": "char_lm", "tuning.method": "full"})
    assert "the tokens of this model are not characters" in words
    words = refusal_of(tiny_config, {FROM: "characters", "task.type": "char_lm", "model.init": "scratch"})
    assert "a character model from scratch takes its shape from [model.scratch]" in words


@pytest.fixture
def tag(base, go_on):
    """`tag(name, tags, changes)`: a finished tagger of words, from a tiny BERT if no model is named."""

    def make(name, tags, changes):
        rows = [
            {"tokens": ["The", tags[n % len(tags)].lower(), f"{n}"], "ner_tags": ["O", f"B-{tags[n % len(tags)]}", "O"]}
            for n in range(48)
        ]
        data = write_rows(base("bert").parent / f"{'-'.join(tags)}.jsonl", rows)
        task = {"data.path": data, "task.type": "token_classification", "data.max_length": 32}
        return go_on(name, {FROM: base("bert"), **task, **changes})

    return make


NAMES = ("CAT", "DOG", "OWL")


@pytest.mark.full
def test_a_tagger_of_words_keeps_its_head_and_gets_a_new_one_for_other_tags(tag):
    first = tag("first", NAMES, {"tuning.method": "full"})
    still = tag("still", NAMES, {FROM: "first", "tuning.method": "full", **STILL})
    assert loss_of(still) == pytest.approx(loss_of(first), abs=1e-5)
    head = plan_of(still).head
    assert head.value == "kept" and "CAT" in head.reason
    assert any(line.startswith("head ") and "kept" in line for line in plan_lines(plan_of(still)))
    new = tag("new", ("ANT", "BEE"), {FROM: "first", "tuning.method": "full", **STILL})
    head = plan_of(new).head
    assert head.value == "new" and "CAT" in head.reason and "ANT" in head.reason
    messages = [one.message for one in of_kind(new, RunProblem) if one.kind == "new weights"]
    assert any("newly initialised" in one for one in messages)


@pytest.mark.full
def test_a_new_adapter_on_a_merged_classifier_has_its_head(classify):
    first = classify("first", ANIMALS, {"tuning.method": "lora"})
    asked = {FROM: "first", "tuning.method": "lora", "tuning.continue_adapter": "merge"}
    still = classify("still", ANIMALS, {**asked, **STILL})
    assert loss_of(still) == pytest.approx(loss_of(first), abs=1e-5)
    other = classify("other", ("ant", "bee", "fly", "wasp"), asked)
    assert plan_of(other).head.value == "new"
