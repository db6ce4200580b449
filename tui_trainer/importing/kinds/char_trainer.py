"""The nested YAML of a character-level trainer (guide E), whose settings are the recipe `char-lm`."""

from collections.abc import Mapping

from tui_trainer.importing import together, trainer_names
from tui_trainer.importing.contract import Kind, Left, Rule, To, Together, Why
from tui_trainer.importing.conversion import Conversion

_TRAINING: Mapping[str, Rule] = {
    "use_compile": To("training.torch_compile"),
    "gradient_clip": To("training.max_grad_norm"),
    "log_interval": To("logging.logging_steps"),
    "epochs": To("training.num_train_epochs"),
    "num_epochs": To("training.num_train_epochs"),
    "learning_rate": To("training.learning_rate"),
    "lr": To("training.learning_rate"),
    "weight_decay": To("training.weight_decay"),
    "seed": To("training.seed"),
    "use_amp": To("training.mixed_precision", values={True: "auto", False: "no"}),
    "device": trainer_names.DEVICE,
}
_EPOCHS, _EPOCHS_OF_THE_RECIPE = ("training.epochs", "training.num_epochs"), 25
_DATA: Mapping[str, Rule] = {
    "max_chars": To("data.max_chars"),
    "block_size": To("data.max_length"),
    "seq_length": To("data.max_length"),
    "num_workers": To("dataloader.num_workers", "threads here"),
    "prefetch_factor": To("dataloader.prefetch_factor"),
    "pin_memory": To("dataloader.pin_memory"),
    "persistent_workers": trainer_names.LIVING_THREADS,
    "dataset": Left(Why.NOT_NEEDED, "its name is no file; data.path names the text"),
}
_MODEL: Mapping[str, Rule] = {
    "hidden_size": To("model.scratch.hidden_size"),
    "n_embd": To("model.scratch.hidden_size"),
    "n_layer": To("model.scratch.num_hidden_layers"),
    "num_layers": To("model.scratch.num_hidden_layers"),
    "n_head": To("model.scratch.num_attention_heads"),
    "num_heads": To("model.scratch.num_attention_heads"),
    "dropout": To("model.scratch.attention_dropout"),
}


def _start_from_recipe(done: Conversion) -> None:
    done.write("profile", "char-lm", reason="the recipe of this trainer; what the file does not say comes from it")


KIND = Kind(
    name="char_trainer",
    title="a character-level trainer",
    rank=6,
    telltale=frozenset(
        {
            "training.batch_size", "training.use_compile", "training.gradient_clip", "training.log_interval",
            "training.save_every", "max_chars",
        }
    ),
    rules={
        **{f"training.{name}": rule for name, rule in (*_TRAINING.items(), *_DATA.items())},
        **{f"data.{name}": rule for name, rule in _DATA.items()},
        **{f"model.{name}": rule for name, rule in _MODEL.items()},
        "device": trainer_names.DEVICE,
        "max_chars": _DATA["max_chars"],
        "dataset": _DATA["dataset"],
    },
    together=(
        together.batch(("training.batch_size",), ("training.gradient_accumulation_steps",)),
        together.every_epochs(
            "checkpoint.save_steps", ("training.save_every", "save_every"), _EPOCHS, _EPOCHS_OF_THE_RECIPE
        ),
        Together((), _start_from_recipe),
    ),
)  # fmt: skip
