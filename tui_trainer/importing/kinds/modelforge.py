"""ModelForge's JSON (guide C). Where a file says nothing else, it cuts a batch into 4 parts of 1 row.

Source: ModelForge/schemas/training_schemas.py and strategies/ of ForgeOpus/ModelForge at 0d8ff5664.
"""

from tui_trainer.importing import together, trainer_names
from tui_trainer.importing.contract import Kind, Left, Off, To, Why
from tui_trainer.importing.data_places import data_place
from tui_trainer.importing.task_names import task_by

# Its third task, extractive question answering, marks the answer in a text: no task here does.
_TASKS = {"text-generation": "causal_lm", "summarization": "seq2seq", "summarisation": "seq2seq"}

KIND = Kind(
    name="modelforge",
    title="ModelForge",
    rank=5,
    telltale=frozenset({"provider", "use_4bit", "use_8bit", "use_nested_quant"}),
    rules={
        **trainer_names.RULES,
        **trainer_names.MODEL,
        **trainer_names.LORA,
        **trainer_names.FOUR_BITS,
        "task": To("task.type", convert=task_by(_TASKS)),
        "model_name": To("model.model_name_or_path"),
        "provider": To(
            "model.provider",
            leave={
                "huggingface": Left(Why.ALWAYS, "models are built by Hugging Face's libraries"),
                "unsloth": trainer_names.NO_UNSLOTH,
            },
        ),
        "dataset": To("data.path", convert=data_place),
        "use_4bit": Off("weights in 4 bits go with the method qlora only"),
        "use_8bit": Off("weights in 8 bits are not trained on; 16 bits or 4 are"),
        "use_nested_quant": To("quantization.bnb_4bit_use_double_quant"),
        "max_seq_length": To("data.max_length", leave={-1: Left(Why.NOT_SUPPORTED, "data.max_length is a number")}),
        "eval_split": To("data.eval_fraction"),
        "device": trainer_names.DEVICE,
        "packing": To("data.packing", "documents in one row do not see each other here"),
        "compute_specs": Left(Why.AUTOMATIC, "a hardware profile is found for the card"),
    },
    together=(
        together.batch(
            trainer_names.MICRO, trainer_names.ACCUMULATION, micro_default=1, accumulation_default=4, packing="packing"
        ),
        together.precision(),
        together.warmup(),
        trainer_names.EVALUATE,
        trainer_names.SAVE,
        together.method(
            "strategy",
            {"sft": "lora", "qlora": "qlora"},
            four_bit=("use_4bit", "load_in_4bit"),
            lora=trainer_names.LORA_NAMES,
            model=("model_name",),
            otherwise="lora",
        ),
    ),
    families=trainer_names.FAMILIES,
    defaults={
        "training.num_train_epochs": 1,
        "training.learning_rate": 2e-4,
        "training.warmup_steps": 0.03,
        "training.weight_decay": 0.001,
        "training.max_grad_norm": 0.3,
        "training.gradient_checkpointing": True,
        "data.group_by_length": True,
        "data.eval_fraction": 0.2,
        "tuning.lora_dropout": 0.1,
    },
)
