"""Nested YAML of a character-level trainer. Its settings correspond to the recipe `char-lm`."""

from tui_trainer.importing import groups
from tui_trainer.importing.conversion import Conversion, Importer, Keys
from tui_trainer.importing.importers.transformers import DEVICE, LIVING_THREADS, THREADS
from tui_trainer.importing.rules import NotNeeded, Table, To, with_prefix

_DATA: Table = {
    "max_chars": "data.max_chars",
    "block_size seq_length": "data.max_length",
    "num_workers": THREADS,
    "prefetch_factor pin_memory": "dataloader.*",
    "persistent_workers": LIVING_THREADS,
    "dataset": NotNeeded("this key does not name a file; set data.path to a text file"),
}


def _start_from_recipe(conversion: Conversion) -> None:
    conversion.write("profile", "char-lm", reason="this recipe sets what the file does not set")


IMPORTER = Importer(
    name="char_trainer",
    title="a character-level trainer",
    rank=6,
    telltale="""training.batch_size training.use_compile training.gradient_clip training.log_interval
    training.save_every max_chars""",
    tables=(
        {
            "training.use_compile": "training.torch_compile",
            "training.gradient_clip": "training.max_grad_norm",
            "training.log_interval": "logging.logging_steps",
            "training.epochs training.num_epochs": "training.num_train_epochs",
            "training.learning_rate training.lr": "training.learning_rate",
            "training.weight_decay": "training.weight_decay",
            "training.seed": "training.seed",
            "training.use_amp": To("training.mixed_precision", values={True: "auto", False: "no"}),
            "model.hidden_size model.n_embd": "model.scratch.hidden_size",
            "model.n_layer model.num_layers": "model.scratch.num_hidden_layers",
            "model.n_head model.num_heads": "model.scratch.num_attention_heads",
            "model.dropout": "model.scratch.attention_dropout",
            "device training.device": DEVICE,
            "max_chars": _DATA["max_chars"],
            "dataset": _DATA["dataset"],
        },
        with_prefix("training", _DATA),
        with_prefix("data", _DATA),
    ),
    groups=(
        Keys(groups.convert_batch, "training.batch_size", "training.gradient_accumulation_steps"),
        Keys(
            groups.every_epochs, "training.save_every save_every", "training.epochs", "training.num_epochs",
            key="checkpoint.save_steps", epochs_default=25,
        ),
        Keys(_start_from_recipe),
    ),
)  # fmt: skip
