"""The data that files of other tools name: paths, splits, chat templates."""

import json

from tests.importing.checks import reasons
from tui_trainer.importing.rules import Why
from tui_trainer.models.chat_rendering import template_names


def test_other_keys_of_an_axolotl_data_set_are_imported_or_reported(read):
    entry = {"path": "./a.jsonl", "type": "house_style", "split": "train[:9]", "name": "en", "shards": 4}
    imported = read({"base_model": "m", "datasets": [entry]})
    assert imported.values["data.path"] == "./a.jsonl"
    assert (imported.values["data.split"], imported.values["data.name"]) == ("train[:9]", "en")
    assert "task.type" not in imported.values
    refused, left = imported.left_out
    assert refused.why is Why.REFUSED and "the type house_style" in refused.reason
    assert left.key == "datasets" and left.reason.startswith("unsupported keys: shards;")
    entry = {"path": "org/t", "data_files": ["a.jsonl", "b.jsonl"], "split": "train[:9]", "type": "completion"}
    imported = read({"base_model": "m", "datasets": [entry]})
    assert "data.split" not in imported.values
    assert [one.reason.partition(";")[0] for one in imported.left_out] == ["unsupported keys: split"]


AXOLOTL_PARTS = [
    ("datasets", {"path": "org/t", "split": "train", "name": "default"}, {}),
    ("datasets", {"path": "org/t", "split": "train_sft"}, {"data.split": "train_sft"}),
    ("pretraining_dataset", {"path": "org/t", "name": "en"}, {"data.name": "en"}),
    ("test_datasets", {"path": "org/t", "split": "train[-9:]"}, {"data.eval_split": "train[-9:]"}),
    ("test_datasets", {"path": "org/t", "split": "train"}, {"data.eval_split": "train"}),
    ("test_datasets", {"path": "./eval.jsonl", "split": "train"}, {}),
]


def test_the_split_of_a_single_axolotl_data_set_is_imported_unless_it_is_the_default(read, subtests):
    for name, entry, values in AXOLOTL_PARTS:
        with subtests.test(name=name, entry=entry):
            imported = read({"base_model": "m", "seed": 1, name: [{**entry, "type": "chat_template"}]}, "axolotl")
            found = {key: imported.values.get(key) for key in ("data.split", "data.eval_split", "data.name")}
            assert {key: value for key, value in found.items() if value} == values
            assert not imported.left_out


TRL_SPLITS = [
    ({"dataset_train_split": "train_sft[:5%]"}, "data.split", "train_sft[:5%]"),
    ({"dataset_test_split": "test_sft", "eval_strategy": "steps"}, "data.eval_split", "test_sft"),
    ({"eval_strategy": "epoch"}, "data.eval_split", "test"),
    ({"dataset_config": "en"}, "data.name", "en"),
    ({"dataset_train_split": "train"}, "data.split", None),
    ({"dataset_test_split": "test"}, "data.eval_split", None),
    ({"dataset_config": "default"}, "data.name", None),
]


def test_the_splits_of_trl_are_imported_unless_they_are_the_defaults(read, subtests):
    for given, key, value in TRL_SPLITS:
        with subtests.test(given=given):
            imported = read({"dataset_name": "org/t", **given}, "trl")
            assert imported.values.get(key) == value
            assert set(reasons(imported).values()) <= {Why.AUTOMATIC, Why.NOT_NEEDED, Why.ALWAYS}
    assert read({"dataset_config_name": "en", "seed": 1}, "transformers").values["data.name"] == "en"


TEMPLATES = [
    (
        "llama_factory", "template",
        {
            **{name: name for name in ("alpaca", "chatml", "gemma", "llama3", "vicuna")}, "phi": "phi3",
            **dict.fromkeys(("qwen3_nothink", "yi", "smollm"), "chatml"), "gemma3": "gemma",
        },
        {
            ("zephyr", "m"): Why.REFUSED, ("mistral", "m"): Why.REFUSED, ("default", "m"): Why.REFUSED,
            ("qwen", "Qwen/Qwen2.5-7B-Instruct"): Why.ALWAYS, ("qwen", "/m/Qwen2.5-Coder-7B-Instruct"): Why.ALWAYS,
            # Their own system message, for rows without one, is another.
            ("qwen", "Qwen/Qwen2-7B-Instruct"): Why.REFUSED, ("qwen", "Qwen/Qwen2.5-7B"): Why.REFUSED,
            ("qwen", "Qwen/Qwen2.5-Math-7B-Instruct"): Why.REFUSED,
            ("qwen3", "Qwen/Qwen3-8B"): Why.ALWAYS, ("qwen3", "Qwen/Qwen3-30B-A3B"): Why.ALWAYS,
            ("qwen3", "Qwen/Qwen3-4B-Instruct-2507"): Why.REFUSED, ("phi4", "microsoft/phi-4"): Why.ALWAYS,
        },
    ),
    (
        "axolotl", "chat_template",
        {
            **{name: name for name in ("chatml", "gemma", "llama3")}, "phi_3": "phi3", "phi_35": "phi3",
            "gemma3": "gemma",
        },
        {
            ("alpaca", "m"): Why.REFUSED, ("mistral_v1", "m"): Why.REFUSED, ("tokenizer_default", "m"): Why.ALWAYS,
            ("qwen_25", "Qwen/Qwen2.5-7B-Instruct"): Why.ALWAYS, ("qwen_25", "Qwen/Qwen2-7B"): Why.REFUSED,
        },
    ),
]  # fmt: skip


def test_chat_templates_with_the_same_format_are_imported(read, subtests):
    for kind, key, same, others in TEMPLATES:
        with subtests.test(kind=kind):
            for name, ours in same.items():
                assert read({key: name, "seed": 1}, kind).values["task.chat_template"] == ours
                assert ours in template_names()
            of_model = "base_model" if kind == "axolotl" else "model_name_or_path"
            for (name, model), expected in others.items():
                imported = read({key: name, of_model: model}, kind)
                assert "task.chat_template" not in imported.values and reasons(imported) == {key: expected}


def test_the_axolotl_type_alpaca_becomes_a_chat_template_if_all_data_sets_have_it(read):
    alpaca, messages = {"path": "a.jsonl", "type": "alpaca"}, {"path": "b.jsonl", "type": "chat_template"}
    imported = read({"base_model": "m", "datasets": [alpaca, alpaca], "chat_template": "chatml"})
    assert imported.values["task.type"] == "chat" and imported.values["task.chat_template"] == "alpaca"
    assert reasons(imported) == {"chat_template": Why.NOT_NEEDED}
    assert any('task.chat_template = "alpaca" (type alpaca: the input' in line for line in imported.report)
    mixed = read({"base_model": "m", "datasets": [alpaca, messages]})
    assert mixed.values["task.type"] == "chat" and "task.chat_template" not in mixed.values


HUB_DATA = [
    ({"path": "org/texts", "revision": "v2"}, "hub:org/texts@v2"),
    ({"path": "org/texts", "data_files": "data/train.jsonl"}, "hub:org/texts/data/train.jsonl"),
    ({"path": "json", "data_files": "./a.jsonl"}, "./a.jsonl"),
    ({"path": "imdb"}, None),
]


def test_an_axolotl_data_set_of_the_hub_keeps_its_file_and_revision(read, subtests):
    for given, path in HUB_DATA:
        with subtests.test(given=given):
            imported = read({"base_model": "m", "datasets": [{**given, "type": "chat_template"}]})
            assert imported.values.get("data.path") == path
            assert path or "hub:owner/name" in next(one.reason for one in imported.left_out if one.key == "datasets")


def test_a_name_is_a_data_set_of_the_hub_unless_such_a_folder_exists(read, tmp_path, subtests):
    (tmp_path / "here" / "conversations").mkdir(parents=True)
    for kind, key in [("trl", "dataset_name"), ("transformers", "dataset_name"), ("modelforge", "dataset")]:
        with subtests.test(kind=kind):
            imported = read({key: "org/conversations", "learning_rate": 1e-4}, kind)
            assert imported.values["data.path"] == "hub:org/conversations"
            line = f'{key}: org/conversations -> data.path = "hub:org/conversations"'
            assert line in "\n".join(imported.report)
            for name in ("data/conversations.jsonl", "here/conversations"):
                assert read({key: name, "learning_rate": 1e-4}, kind).values["data.path"] == name
    imported = read({"dataset_name": "imdb", "learning_rate": 1e-4}, "trl")
    [left] = [one for one in imported.left_out if one.key == "dataset_name"]
    assert left.why is Why.DOES_NOT_FIT and "hub:owner/name" in left.reason


def test_several_axolotl_data_sets_become_several_paths_if_they_go_together(read):
    entries = [
        {"path": "a.jsonl", "type": "completion", "field": "body"},
        {"path": "b,c.jsonl", "type": "completion", "field": "body"},
        {"path": "org/texts", "type": "completion", "field": "body", "split": "train[:9]"},
    ]
    imported = read({"base_model": "m", "datasets": entries})
    assert imported.values["data.path"] == r"a.jsonl, b\,c.jsonl, hub:org/texts"
    assert (imported.values["task.type"], imported.values["data.text_column"]) == ("causal_lm", "body")
    [left] = imported.left_out
    assert left.key == "datasets" and left.reason.startswith("unsupported keys: split;")
    nowhere = read({"base_model": "m", "datasets": [{"path": "a.jsonl"}, {"path": "imdb"}]})
    assert "data.path" not in nowhere.values and reasons(nowhere) == {"datasets": Why.NOT_SUPPORTED}
    entries = [{"path": "a.jsonl", "type": "completion", "field": "body"}, {"path": "b.jsonl", "type": "completion"}]
    unlike = read({"base_model": "m", "datasets": entries})
    assert unlike.values["data.path"] == "a.jsonl, b.jsonl" and "data.text_column" not in unlike.values
    assert [one.reason.partition(";")[0] for one in unlike.left_out] == ["unsupported keys: field"]


def test_sampling_probabilities_are_refused(read):
    imported = read(
        {"cutoff_len": 9, "template": "chatml", "mix_strategy": "interleave_under", "interleave_probs": "0.7,0.3"},
        "llama_factory",
    )
    assert "data.weights" not in imported.values
    found = reasons(imported)
    assert (found["mix_strategy"], found["interleave_probs"]) == (Why.REFUSED, Why.REFUSED)


DATA_SETS = {
    "turns": {"ranking": True, "formatting": "sharegpt", "columns": {"messages": "conversations"}},
    "texts": {"ranking": True, "columns": {"prompt": "instruction", "chosen": "chosen", "rejected": "rejected"}},
    "named": {"ranking": True, "columns": {"prompt": "ask", "query": "more", "chosen": "good", "rejected": "bad"}},
    "answers": {"columns": {"prompt": "ask", "response": "output"}},
    "marked": {"formatting": "sharegpt", "columns": {"messages": "messages", "kto_tag": "label"}},
}  # fmt: skip
PAIR_COLUMNS = {"data.text_column": "ask", "data.text_pair_column": "more", "data.target_column": "good,bad"}
LISTED_PAIRS = [
    ("turns", "dpo", {}, ""), ("texts", "dpo", {}, ""), ("named", "dpo", PAIR_COLUMNS, ""),
    ("texts", "sft", {}, "the rows are pairs of answers; nearest: stage dpo"),
    ("answers", "dpo", {}, "the rows are no pairs of answers (ranking); nearest: stage sft"),
    ("texts", "rm", {}, ""), ("turns", "rm", {}, ""), ("marked", "kto", {}, ""),
    ("marked", "dpo", {}, "the answers are marked as good or bad (kto_tag); nearest: stage kto"),
    ("answers", "kto", {}, "the answers are not marked (kto_tag); nearest: stage sft"),
]  # fmt: skip


def test_data_sets_of_llama_factory_are_pairs_if_they_are_ranked(read, tmp_path, subtests):
    data_sets = {name: {"file_name": f"{name}.json", **entry} for name, entry in DATA_SETS.items()}
    (tmp_path / "dataset_info.json").write_text(json.dumps(data_sets))
    for name, stage, columns, refusal in LISTED_PAIRS:
        with subtests.test(f"{name} {stage}"):
            imported = read({"stage": stage, "dataset": name, "dataset_dir": "."}, "llama_factory")
            [reason] = [left.reason for left in imported.left_out if left.key == "dataset"] or [""]
            assert refusal in reason and bool(refusal) == bool(reason)
            assert ("data.path" in imported.values) != bool(refusal)
            found = {key: imported.values.get(key) for key in PAIR_COLUMNS}
            assert {key: value for key, value in found.items() if value} == columns
