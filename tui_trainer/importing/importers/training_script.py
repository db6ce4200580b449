"""Flat config of a custom training script, with the names that such scripts often use."""

from tui_trainer.importing import groups
from tui_trainer.importing.conversion import Importer, Keys
from tui_trainer.importing.importers import transformers as hf
from tui_trainer.importing.rules import Automatic, Off
from tui_trainer.importing.tokens_and_positions import convert_tokens, rope_table

_ACCUMULATION = "gradient_accumulation_steps grad_accum_steps gradient_accumulation grad_accum"

IMPORTER = Importer(
    name="training_script",
    title="the flat config of a training script",
    rank=4,
    telltale="""model_name batch_size grad_accum_steps grad_accum num_workers prefetch_factor pin_memory
    persistent_workers early_stopping lr epochs""",
    tables=(
        hf.ARGUMENTS, hf.MODEL, hf.LORA, hf.FOUR_BITS, hf.SCRIPT_DATA,
        {
            "model_name": "model.model_name_or_path",
            "max_length max_seq_length": "data.max_length",
            "epochs num_epochs": "training.num_train_epochs",
            "lr": "training.learning_rate",
            "optimizer": hf.OPTIMIZER,
            "scheduler lr_scheduler": hf.SCHEDULER,
            "gradient_clip": "training.max_grad_norm",
            "num_workers": hf.THREADS,
            "prefetch_factor pin_memory": "dataloader.*",
            "persistent_workers": hf.LIVING_THREADS,
            "packing": hf.PACKING,
            "eval_batch_size": "evaluation.per_device_eval_batch_size",
            "num_labels": Automatic("labels are counted in the data"),
            "device": hf.DEVICE,
            "use_lora": Off("set tuning.method instead"),
            "use_4bit use_qlora": hf.FOUR_BITS["load_in_4bit"],
            "use_8bit": hf.FOUR_BITS["load_in_8bit"],
        },
    ),
    groups=(
        hf.BLOCKS,
        Keys(groups.convert_batch, f"batch_size {hf.MICRO_BATCH_KEYS}", _ACCUMULATION),
        Keys(groups.schedule, "scheduler lr_scheduler", "lr_scheduler_kwargs"),
        *hf.GROUPS,
        Keys(groups.model_files, "tokenizer", "tokenizer_path"),
        Keys(rope_table, "rope_scaling"),
        Keys(convert_tokens, "add_tokens", "new_tokens", "additional_special_tokens",
        special="additional_special_tokens"),
        Keys(
            groups.method, "use_lora", "load_in_4bit", "use_4bit", "use_qlora", adapter_key="use_lora",
            methods={True: "lora", False: "full"},
        ),
    ),
)  # fmt: skip
