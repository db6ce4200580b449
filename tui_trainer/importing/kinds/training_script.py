"""The flat file of somebody's own training script, with the names that such scripts use (guides A, B and D)."""

from tui_trainer.importing import together, trainer_names
from tui_trainer.importing.contract import Kind, Left, Off, To, Why

_ACCUMULATION = ("gradient_accumulation_steps", "grad_accum_steps", "gradient_accumulation", "grad_accum")

KIND = Kind(
    name="training_script",
    title="a training script's own flat file",
    rank=4,
    telltale=frozenset(
        {
            "model_name", "batch_size", "grad_accum_steps", "grad_accum", "num_workers", "prefetch_factor",
            "pin_memory", "persistent_workers", "early_stopping", "lr", "epochs",
        }
    ),
    rules={
        **trainer_names.RULES,
        **trainer_names.MODEL,
        **trainer_names.LORA,
        **trainer_names.SCRIPT_DATA,
        "model_name": To("model.model_name_or_path"),
        "max_length": To("data.max_length"),
        "max_seq_length": To("data.max_length"),
        "epochs": To("training.num_train_epochs"),
        "num_epochs": To("training.num_train_epochs"),
        "lr": To("training.learning_rate"),
        "optimizer": To("training.optim", values=trainer_names.OPTIMISERS),
        "scheduler": To("training.lr_scheduler_type", values=trainer_names.SCHEDULERS),
        "lr_scheduler": To("training.lr_scheduler_type", values=trainer_names.SCHEDULERS),
        "gradient_clip": To("training.max_grad_norm"),
        "num_workers": To("dataloader.num_workers", "threads here"),
        "prefetch_factor": To("dataloader.prefetch_factor"),
        "pin_memory": To("dataloader.pin_memory"),
        "persistent_workers": trainer_names.LIVING_THREADS,
        "packing": To("data.packing", "documents in one row do not see each other here"),
        "eval_batch_size": To("evaluation.per_device_eval_batch_size"),
        "num_labels": Left(Why.AUTOMATIC, "labels are counted in the data"),
        "device": trainer_names.DEVICE,
        "use_lora": Off("tuning.method says it here"),
    },
    together=(
        together.batch(("batch_size", *trainer_names.MICRO), _ACCUMULATION, packing="packing"),
        together.precision(),
        together.warmup(),
        together.early_stopping(),
        trainer_names.EVALUATE,
        trainer_names.SAVE,
        together.method("use_lora", {True: "lora", False: "full"}, lora=trainer_names.LORA_NAMES),
    ),
    families=trainer_names.FAMILIES,
)  # fmt: skip
