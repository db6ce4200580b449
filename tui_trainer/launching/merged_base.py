"""Merging an adapter into its model before a run that trains a new adapter on the result.

The new adapter names the merged model as its base, so the run keeps the merged model in its folder `base`. The worker
loads the model on the CPU, whole and in the dtype of its files."""

import shutil
from pathlib import Path
from typing import Any

from tui_trainer.config.load import LoadedConfig
from tui_trainer.config.sections import MODEL_KEY, Config
from tui_trainer.data.progress import Progress
from tui_trainer.errors import RunError
from tui_trainer.models.adapters import CONTINUES_KEY, merges_before_adapting
from tui_trainer.models.facts import find_model, require_folder
from tui_trainer.models.files import shards
from tui_trainer.models.heads import CLASSIFYING_HEADS, Labels, config_label_names
from tui_trainer.planning.ancestry import ancestors_of, write_ancestors
from tui_trainer.runs.folder import RunFolder, make_durable, put_in_place
from tui_trainer.tasks import find_task
from tui_trainer.worker.asking import WorkerFailed, ask

SETTINGS = (MODEL_KEY, CONTINUES_KEY)
"""Settings that the merge changes, so that they differ between the plan and the requested config."""


def with_merged_base(loaded: LoadedConfig, run: RunFolder, progress: Progress) -> LoadedConfig:
    """Return the config with the merged model in place of the adapter; unchanged if nothing has to be merged.

    Raises RunError if the merge fails, and ConfigError as `find_model` does."""
    config = loaded.config
    if not merges_before_adapting(config, find_task(config.task.type).head):
        return loaded
    if not run.base.is_dir():
        progress("merging the adapter", 0, None, "")
        try:
            ask("merge_base", {"config": config.model_dump(mode="json"), "folder": str(run.root)})
        except WorkerFailed as failure:
            raise RunError(f"the adapter could not be merged: the process {failure}") from None
    reason = "the adapter is merged into its model first"
    return loaded.with_fitted_value(MODEL_KEY, str(run.base), reason).with_fitted_value(CONTINUES_KEY, "auto", reason)


def write_base(question: dict[str, Any], _: Any) -> dict[str, Any]:
    """Write the merged model to the run's folder `base`, atomically. Runs in the worker. Raises ConfigError."""
    import torch

    from tui_trainer.models.loading import load_pretrained, load_tokenizer, merge_adapter, save_tokenizer
    from tui_trainer.models.towers import copy_processor_files
    from tui_trainer.models.writing import keep_plain_settings

    config, run = Config.model_validate(question["config"]), RunFolder.open(Path(question["folder"]))
    head = find_task(config.task.type).head
    facts = find_model(config.model.model_name_or_path, config.model.revision, head=head)
    assert facts.adapter is not None
    folder, adapter = require_folder(facts), facts.adapter.folder
    label_names = config_label_names(facts.config) if head in CLASSIFYING_HEADS else ()
    labels = Labels(label_names, facts.config.get("problem_type") or "") if label_names else None
    model = load_pretrained(folder, config.model, getattr(torch, facts.dtype or "float32"), head=head, labels=labels)
    merged_model = merge_adapter(model, adapter)
    keep_plain_settings(merged_model)
    unfinished_folder = run.base.with_name(f".writing-{run.base.name}")
    shutil.rmtree(unfinished_folder, ignore_errors=True)
    unfinished_folder.mkdir(mode=0o700)
    merged_model.save_pretrained(unfinished_folder, max_shard_size=shards.SHARD_BYTES)
    save_tokenizer(load_tokenizer(facts.tokenizer_folder or folder, config.model.trust_remote_code), unfinished_folder)
    copy_processor_files(folder, unfinished_folder)
    for code_file in folder.glob("*.py") if config.model.trust_remote_code else ():
        shutil.copyfile(code_file, unfinished_folder / code_file.name)
    if (generation_file := adapter / "generation_config.json").is_file():
        # The adapter may have other stop tokens than its model.
        shutil.copyfile(generation_file, unfinished_folder / generation_file.name)
    write_ancestors(unfinished_folder, ancestors_of(config))
    make_durable(unfinished_folder)
    put_in_place(unfinished_folder, run.base)
    return {}
