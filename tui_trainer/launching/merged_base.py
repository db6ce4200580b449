"""A new adapter on a merged one: the adapter that a run starts from is put into its model first, which the run keeps in
its folder `base`. An adapter names the model that it is for, and so that model has to lie somewhere.

The worker's side loads the model on the CPU, as its files have it: whole, with the adapter beside it.
"""

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
from tui_trainer.models.heads import CLASSIFYING, Labels, own_labels
from tui_trainer.planning.ancestry import ancestors_of, write_ancestors
from tui_trainer.runs.folder import RunFolder, make_durable, put_in_place
from tui_trainer.tasks import find_task
from tui_trainer.worker.asking import WorkerFailed, ask

SETTINGS = (MODEL_KEY, CONTINUES_KEY)
"""What a plan has otherwise than the config that was asked for."""


def with_merged_base(loaded: LoadedConfig, run: RunFolder, progress: Progress) -> LoadedConfig:
    """The config with the merged model in place of the adapter; any other as it is. Raises RunError where it cannot be
    merged, ConfigError as `find_model`."""
    config = loaded.config
    if not merges_before_adapting(config, find_task(config.task.type).head):
        return loaded
    if not run.base.is_dir():
        progress("merging the adapter", 0, None, "")
        try:
            ask("merge_base", {"config": config.model_dump(mode="json"), "folder": str(run.root)})
        except WorkerFailed as failure:
            raise RunError(f"the adapter could not be merged: the process {failure}") from None
    why = "the adapter is merged into its model first"
    return loaded.fitted(MODEL_KEY, str(run.base), why).fitted(CONTINUES_KEY, "auto", why)


def write_base(question: dict[str, Any], _: Any) -> dict[str, Any]:
    """In the worker: write beside, sync, then rename. Raises ConfigError for a model that cannot be loaded."""
    import torch

    from tui_trainer.models.loading import load_pretrained, load_tokenizer, merge_adapter, save_tokenizer
    from tui_trainer.models.towers import copy_processor_files
    from tui_trainer.models.writing import keep_plain_settings

    config, run = Config.model_validate(question["config"]), RunFolder.open(Path(question["folder"]))
    head = find_task(config.task.type).head
    facts = find_model(config.model.model_name_or_path, config.model.revision, head=head)
    assert facts.adapter is not None
    folder, adapter = require_folder(facts), facts.adapter.folder
    names = own_labels(facts.config) if head in CLASSIFYING else ()
    labels = Labels(names, facts.config.get("problem_type") or "") if names else None
    model = load_pretrained(folder, config.model, getattr(torch, facts.dtype or "float32"), head=head, labels=labels)
    merged = merge_adapter(model, adapter)
    keep_plain_settings(merged)
    beside = run.base.with_name(f".writing-{run.base.name}")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(mode=0o700)
    merged.save_pretrained(beside, max_shard_size=shards.SHARD_BYTES)
    save_tokenizer(load_tokenizer(facts.tokenizer_folder or folder, config.model.trust_remote_code), beside)
    copy_processor_files(folder, beside)
    for code in folder.glob("*.py") if config.model.trust_remote_code else ():
        shutil.copyfile(code, beside / code.name)
    if (generation := adapter / "generation_config.json").is_file():
        # The task of the adapter may end its answers otherwise than its model.
        shutil.copyfile(generation, beside / generation.name)
    write_ancestors(beside, ancestors_of(config))
    make_durable(beside)
    put_in_place(beside, run.base)
    return {}
