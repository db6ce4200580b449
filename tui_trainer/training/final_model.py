"""Write the final model of a run: weights, tokenizer and a model card in the Markdown that model hubs show."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import yaml

from tui_trainer.config.sections import Config
from tui_trainer.files.hub_layout import is_hub_name, published_name
from tui_trainer.models.facts import find_model, require_folder
from tui_trainer.models.heads import CLASSIFYING_HEADS, ENCODER_DECODER, Head, auto_class_name
from tui_trainer.models.loading import save_tokenizer
from tui_trainer.models.towers import copy_processor_files, has_towers
from tui_trainer.planning.ancestry import chain_words
from tui_trainer.planning.plan import Plan
from tui_trainer.reporting.facts import ReportedModel, Rows
from tui_trainer.reporting.manifest import first_model, write_manifest
from tui_trainer.runs.folder import make_durable, put_in_place
from tui_trainer.runs.result import ended_words
from tui_trainer.runs.wording import held_out_words, rows_words
from tui_trainer.tasks import find_task
from tui_trainer.tasks.contract import Baselines
from tui_trainer.terminal.safe_text import escape_markdown, one_line
from tui_trainer.training.components import Components
from tui_trainer.training.job import Job
from tui_trainer.training.position import Position
from tui_trainer.units import format_count


def write_final_model(
    job: Job, plan: Plan, components: Components, position: Position, scores: Mapping[str, float]
) -> None:
    """Write the folder `model/` under a temporary name, sync and rename it. `scores` are those of the calibration."""
    facts = model_facts(position, job.baselines, plan.config)
    facts = replace(facts, scores={**facts.scores, **scores})
    target = job.folder.model
    folder = target.with_name(f".writing-{target.name}")
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    components.method.save_model(components.model, folder)
    save_tokenizer(components.tokenizer, folder)
    model_type = components.model.config.model_type
    if has_towers(model_type):
        model = plan.config.model
        copy_processor_files(require_folder(find_model(model.model_name_or_path, model.revision)), folder)
    card = model_card(plan, facts, job.data.source, job.versions, model_type)
    (folder / "README.md").write_text(card, encoding="utf-8")
    write_manifest(folder, plan, components.model.config)
    make_durable(folder)
    put_in_place(folder, target)


def model_facts(position: Position, baselines: Baselines | None, config: Config) -> ReportedModel:
    """Return the facts of the final model. With early stopping they belong to the weights of the best evaluation."""
    has_best = config.evaluation.early_stopping_patience > 0 and position.best_step > 0
    kept_step = position.best_step if has_best and position.best_step != position.step else None
    metric = config.evaluation.metric_for_best_model
    best_value = position.best_eval_loss if metric == "loss" else position.best_scores.get(metric)
    reason = "early stopping" if position.stopped_early else "done"
    return ReportedModel(
        step=position.step,
        weights_step=position.best_step if has_best else position.step,
        ending=ended_words(reason, position.step, kept_step, metric, best_value),
        training_seconds=position.training_seconds,
        train_loss=position.recent_loss,
        eval_loss=position.best_eval_loss if has_best else position.eval_loss,
        scores=position.best_scores if has_best else position.scores,
        baseline_losses=baselines.losses if baselines else {},
        baseline_scores=baselines.scores if baselines else {},
    )


def model_card(plan: Plan, model: ReportedModel, source: str, versions: dict[str, str], model_type: str = "") -> str:
    """Return the model card: origin, data, losses, settings and versions. `source` describes the data. The card may be
    published, so names are escaped and paths of this machine are left out."""
    scores = model.score_rows()
    unit = find_task(plan.config.task.type).loss_unit
    data = escape_markdown(_published(source, plan.config))
    replayed_rows = sum(source.rows_per_epoch for source in plan.sources if source.is_replay)
    replay_words = f" {replayed_rows:,} rows of each epoch are replayed, so that less is forgotten."
    lines = [
        "---",
        yaml.safe_dump(_metadata(plan), sort_keys=False, allow_unicode=True, width=1000).rstrip(),
        "---",
        "",
        f"# {escape_markdown(plan.recipe or plan.config.task.type)}",
        "",
        _origin(plan),
        "",
        *_use(plan, model_type),
        "## Data",
        "",
        f"Trained on {data}: {rows_words(plan.train_rows.value, plan.train_tokens.value)}; "
        f"{held_out_words(plan.eval_rows.value)}; the vocabulary has {plan.vocabulary.value:,} tokens."
        f"{replay_words * bool(replayed_rows)}",
        "",
        *_table(f"Loss ({unit})" if unit else "Loss", model.loss_rows()),
        *(_table("Scores on held-out rows", scores) if scores else []),
        *_table("Settings", model.setting_rows(plan)),
        *_table("Versions", list(versions.items())),
    ]
    return "\n".join(lines)


def _metadata(plan: Plan) -> dict[str, Any]:
    """Return the metadata that a model hub reads from a card. Source: the hub's documentation, "Model Cards"."""
    name = published_name(first_model(plan))
    base_field = {} if plan.config.is_from_scratch or not name or not is_hub_name(name) else {"base_model": name}
    return {
        "library_name": "peft" if plan.config.tuning.has_adapter else "transformers",
        "pipeline_tag": find_task(plan.config.task.type).pipeline_tag,
        # The hub refuses a card whose base model is not a valid hub name.
        **base_field,
        "tags": ["tui-trainer"],
    }


def _published(source: str, config: Config) -> str:
    """Return the description of the data with each path of this machine replaced by its last part."""
    paths = {*config.data.paths, *config.data.replay_paths, *config.data.eval_paths}
    for path in sorted(paths, key=len, reverse=True):
        for path_text in (path, one_line(path, 200)) if path.startswith("/") else ():
            source = source.replace(path_text, published_name(path))
    return source


def _origin(plan: Plan) -> str:
    size = format_count(plan.parameters.value)
    if plan.config.is_from_scratch:
        return f"A model with {size} parameters, trained from scratch with tui-trainer."
    name = escape_markdown(chain_words(plan.ancestors) or published_name(plan.config.model.model_name_or_path))
    if plan.config.tuning.has_adapter:
        portion = format_count(plan.trained_parameters.value)
        return f"An adapter with {portion} parameters for {name} ({size} parameters), trained with tui-trainer."
    if plan.config.tuning.trainable_layers:
        portion = format_count(plan.trained_parameters.value)
        return f"Based on {name}, a model with {size} parameters; {portion} of them were fine-tuned with tui-trainer."
    return f"Based on {name}, a model with {size} parameters; all of them were fine-tuned with tui-trainer."


def _use(plan: Plan, model_type: str = "") -> list[str]:
    """Return the lines of the card's example code, which loads and runs the model with transformers and peft alone."""
    config, head = plan.config, find_task(plan.config.task.type).head
    kind, has_adapter = auto_class_name(head, model_type), config.tuning.has_adapter
    # The config of the base model has no label names.
    has_labels, writes = has_adapter and kind.endswith("Classification"), head not in CLASSIFYING_HEADS
    imports = ["AutoConfig"] * has_labels + [kind, "AutoTokenizer"] + ["GenerationConfig"] * (has_adapter and writes)
    code = [
        *["from peft import PeftModel"] * has_adapter,
        f"from transformers import {', '.join(imports)}",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("path/of/this/folder")',
    ]
    if has_adapter:
        code += _adapter_code(plan, kind, has_labels=has_labels, writes=writes)
    else:
        code.append(f'model = {kind}.from_pretrained("path/of/this/folder")')
    return ["## Use", "", "```python", *code, *_question_code(config, head), "```", ""]


def _adapter_code(plan: Plan, kind: str, *, has_labels: bool, writes: bool) -> list[str]:
    model = plan.config.model
    base_source = '"path/of/the/base/model"'
    if (name := published_name(model.model_name_or_path)) == model.model_name_or_path or "/" in name:
        base_source = repr(name) + (f", revision={model.revision!r}" if model.revision != "main" else "")
    adds_tokens = bool(model.add_tokens)
    return [
        *['config = AutoConfig.from_pretrained("path/of/this/folder")'] * has_labels,
        *[f"config.vocab_size = AutoConfig.from_pretrained({base_source}).vocab_size"] * (has_labels and adds_tokens),
        f"base = {kind}.from_pretrained({base_source}{', config=config' if has_labels else ''}{_positions(plan)})",
        *(_RESIZE_CODE if adds_tokens else []),
        # peft uses the base model's generation settings, whose stop token may differ.
        *['base.generation_config = GenerationConfig.from_pretrained("path/of/this/folder")'] * writes,
        'model = PeftModel.from_pretrained(base, "path/of/this/folder").eval()',
        "model = model.merge_and_unload()  # only if you need a merged model",
    ]


def _question_code(config: Config, head: Head) -> list[str]:
    """Return lines of Python that tokenize an input, run the model and decode its output."""
    pair_code = ', "the second text"' if config.data.text_pair_column else ""
    match head:
        case "question_answering":
            code = 'tokenizer("a question?", "a text with the answer", truncation="only_second", return_tensors="pt")'
            return [f"inputs = {code}", "outputs = model(**inputs)  # start_logits and end_logits of each token"]
        case "token_classification":
            code = 'tokenizer(["some", "words"], is_split_into_words=True, truncation=True, return_tensors="pt")'
            return [f"inputs = {code}", "logits = model(**inputs).logits  # the first token of each word has its tag"]
        case "sequence_classification" if find_task(config.task.type).scores_answers:
            turns = '[{"role": "user", "content": "a question"}, {"role": "assistant", "content": "an answer"}]'
            code = 'tokenizer.apply_chat_template(conversation, return_dict=True, return_tensors="pt")'
            return [f"conversation = {turns}", f"inputs = {code}", "score = model(**inputs).logits[0, 0]"]
        case "sequence_classification":
            code = f'tokenizer("a text"{pair_code}, truncation=True, return_tensors="pt")'
            return [f"inputs = {code}", "logits = model(**inputs).logits"]
    index_code = "[0]" if head == ENCODER_DECODER else '[0, inputs["input_ids"].shape[1] :]'
    if find_task(config.task.type).holds_conversations:
        messages = '[{"role": "user", "content": "a question"}]'
        lines = [f"inputs = tokenizer.apply_chat_template({messages}, add_generation_prompt=True, "]
        lines += ['    return_dict=True, return_tensors="pt")']
    elif head == ENCODER_DECODER:
        lines = [f'inputs = tokenizer({config.task.source_prefix + "a text"!r}, truncation=True, return_tensors="pt")']
    else:
        lines = ['inputs = tokenizer("the beginning of a text", return_tensors="pt", return_token_type_ids=False)']
    length_limit = "" if head == ENCODER_DECODER else ", max_new_tokens=200"
    decode_call = f"tokenizer.decode(model.generate(**inputs{length_limit}){index_code}, skip_special_tokens=True)"
    return [*lines, f"text = {decode_call}"]


def _positions(plan: Plan) -> str:
    """Return position settings that the run changed, as code for arguments of `from_pretrained`; empty if none."""
    rope = plan.config.model.rope_scaling
    if rope.rope_type == "default":
        return ""
    config = find_task(plan.config.task.type).model_config(plan.config, plan.vocabulary.value)
    shape = plan.model_shape()
    return f", rope_parameters={config['rope_parameters']!r}, max_position_embeddings={shape.max_position_embeddings}"


# transformers also initializes new rows with the mean of the others; the adapter has the rows of its own tokens.
_RESIZE_CODE = [
    "if len(tokenizer) > base.config.vocab_size:",
    "    base.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=64)",
]


def _table(title: str, rows: Rows) -> list[str]:
    cells = (f"| {escape_markdown(name)} | {escape_markdown(value)} |" for name, value in rows)
    return [f"## {title}", "", "| | |", "|---|---|", *cells, ""]
