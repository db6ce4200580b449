"""ModelForge's JSON (guide C). Where a file says nothing else, it cuts a batch into 4 parts of 1 row."""

from tui_trainer.importing import together, trainer_names
from tui_trainer.importing.contract import Kind, Left, Off, To, Why
from tui_trainer.importing.data_places import data_place

_TASKS = {"text-generation": "causal_lm", "summarization": "seq2seq"}

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
        "task": To("task.type", values=_TASKS),
        "model_name": To("model.model_name_or_path"),
        "provider": To(
            "model.provider",
            leave={
                "huggingface": Left(Why.ALWAYS, "models are built by Hugging Face's libraries"),
                "unsloth": trainer_names.NO_UNSLOTH,
            },
        ),
        "dataset": To("data.path", convert=data_place),
        "strategy": Left(Why.NOT_NEEDED, "tuning.method and task.type say it"),
        "use_4bit": Off("weights in 4 bits go with the method qlora only"),
        "use_8bit": Off("weights in 8 bits are not trained on; 16 bits or 4 are"),
        "use_nested_quant": To("quantization.bnb_4bit_use_double_quant"),
        "max_seq_length": To("data.max_length"),
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
        together.method(four_bit=("use_4bit", "load_in_4bit"), lora=trainer_names.LORA_NAMES),
    ),
    families=trainer_names.FAMILIES,
)
