"""JSON of ModelForge. Its default batch is 4 micro-batches of 1 row.

Source: ModelForge/schemas/training_schemas.py and strategies/ of ForgeOpus/ModelForge at 0d8ff5664."""

from tui_trainer.importing import groups
from tui_trainer.importing.conversion import Importer, Keys
from tui_trainer.importing.importers import transformers as hf
from tui_trainer.importing.rules import Always, Automatic, Refused, To, data_path, task_by

_TASKS = {
    "text-generation": "causal_lm", "summarization": "seq2seq", "summarisation": "seq2seq",
    "extractive-question-answering": "question_answering", "question-answering": "question_answering",
}  # fmt: skip
_OUR_PROVIDER = Always("models are built with Hugging Face libraries")

IMPORTER = Importer(
    name="modelforge",
    title="ModelForge",
    rank=5,
    telltale="provider use_4bit use_8bit use_nested_quant",
    tables=(
        hf.ARGUMENTS, hf.MODEL, hf.LORA, hf.FOUR_BITS,
        {
            "task": To("task.type", convert=task_by(_TASKS)),
            "model_name": "model.model_name_or_path",
            "provider": To("model.provider", values={"huggingface": _OUR_PROVIDER, "unsloth": "unsloth"}),
            "dataset": To("data.path", convert=data_path),
            "use_4bit": hf.FOUR_BITS["load_in_4bit"],
            "use_8bit": hf.FOUR_BITS["load_in_8bit"],
            "use_nested_quant": "quantization.bnb_4bit_use_double_quant",
            "max_seq_length": To("data.max_length", values={-1: Refused("data.max_length must be a number of tokens")}),
            "eval_split": "data.eval_fraction",
            "device": hf.DEVICE,
            "packing": hf.PACKING,
            "compute_specs": Automatic("the plan chooses the settings for the GPU"),
        },
    ),
    groups=(
        Keys(groups.convert_batch, hf.MICRO_BATCH_KEYS, "gradient_accumulation_steps", micro_default=1,
        accumulation_default=4),
        *hf.SHARED_GROUPS, *hf.FSDP,
        Keys(
            groups.method, "strategy", "use_4bit", "load_in_4bit", adapter_key="strategy",
            methods={"sft": "lora", "qlora": "qlora"}, model_keys="model_name", default="lora",
        ),
    ),
    defaults={
        "training.num_train_epochs": 1, "training.learning_rate": 2e-4, "training.warmup_steps": 0.03,
        "training.weight_decay": 0.001, "training.max_grad_norm": 0.3, "training.gradient_checkpointing": True,
        "data.group_by_length": True, "data.eval_fraction": 0.2, "tuning.lora_dropout": 0.1,
    },
)  # fmt: skip
