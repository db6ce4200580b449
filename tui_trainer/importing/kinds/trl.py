"""TRL's `SFTConfig`, with the model and data arguments of its command line.

Source: trl/trainer/sft_config.py and trl/trainer/model_config.py of TRL 1.x; older names where they were renamed.
"""

from tui_trainer.importing import together, trainer_names
from tui_trainer.importing.contract import Kind, Left, Off, Refused, Same, To, Why

KIND = Kind(
    name="trl",
    title="TRL SFTConfig",
    rank=2,
    telltale=frozenset(
        {
            "dataset_text_field", "packing_strategy", "padding_free", "completion_only_loss",
            "assistant_only_loss", "dataset_num_proc", "dataset_kwargs", "eval_packing", 
            "chat_template_path", "use_peft", "lora_task_type", "use_bnb_nested_quant", "dataset_train_split",
            "dataset_test_split", "num_of_sequences", "chars_per_token", "truncation_mode",
        }
    ),
    rules={
        **trainer_names.RULES,
        **trainer_names.MODEL,
        **trainer_names.LORA,
        **trainer_names.FOUR_BITS,
        **dict.fromkeys(
            ("beta", "max_prompt_length", "max_completion_length", "precompute_ref_log_probs", "num_generations",
             "reward_funcs", "reward_model_path", "desirable_weight"),
            Refused("models learn from texts and completions here, not from preferences or rewards"),
        ),
        "max_length": To("data.max_length"),
        "max_seq_length": To("data.max_length"),
        "packing": To("data.packing", "documents in one row do not see each other here"),
        "eval_packing": Left(Why.AUTOMATIC, "held-out rows are packed as the others are"),
        "packing_strategy": Left(Why.AUTOMATIC, "rows are filled by best fit"),
        "padding_free": Left(Why.AUTOMATIC, "packed rows have no padding"),
        "pad_to_multiple_of": Left(Why.AUTOMATIC, "rows are padded to the longest of their batch"),
        "truncation_mode": Same(("keep_start",), "the start is kept", "the start of a long row is kept here"),
        "shuffle_dataset": Left(Why.ALWAYS, "rows come in a new order in each epoch"),
        "dataset_text_field": To("data.text_column"),
        "dataset_num_proc": To("data.num_proc"),
        "dataset_batch_size": Left(Why.AUTOMATIC, "data is prepared in pieces of a fitting size"),
        "dataset_kwargs": Off("data is always prepared"),
        **trainer_names.HUB_DATA,
        "dataset_train_split": Left(Why.NOT_NEEDED, "data.path names the rows to train on"),
        "dataset_test_split": Left(Why.NOT_NEEDED, "data.eval_path or data.eval_fraction say what is held out"),
        "dataset_streaming": Off("data is prepared before the run"),
        "chat_template_path": To("task.chat_template"),
        "eos_token": Off("the end of a text is the tokenizer's own token"),
        "pad_token": Off("padding never counts, so its token does not matter"),
        **{f"model_init_kwargs.{name}": rule for name, rule in trainer_names.MODEL.items()},
        "model_init_kwargs.revision": To("model.revision"),
        "num_of_sequences": Left(Why.AUTOMATIC, "rows are filled by best fit"),
        "chars_per_token": Left(Why.AUTOMATIC, "tokens are counted"),
        "loss_type": Same(("nll", "chunked_nll"), "cross entropy, in chunks on a GPU", "the loss is cross entropy"),
        "activation_offloading": Off("activations stay on the GPU; training.gradient_checkpointing saves them"),
        "lora_target_parameters": Off("adapters are for layers"),
        "lora_task_type": Left(Why.AUTOMATIC, "task.type says it"),
        "use_bnb_nested_quant": To("quantization.bnb_4bit_use_double_quant"),
        "gradient_checkpointing_use_reentrant": Left(Why.AUTOMATIC, "checkpointing is never reentrant"),
    },
    together=(
        *trainer_names.trainer_groups(packing="packing"),
        together.loss_on_parts(),
        together.method(
            "use_peft",
            {True: "lora", False: "full"},
            four_bit=("load_in_4bit",),
            lora=trainer_names.LORA_NAMES,
            model=("model_name_or_path",),
            otherwise="full",
        ),
    ),
    families=trainer_names.FAMILIES,
    defaults={
        **trainer_names.DEFAULTS,
        "training.learning_rate": 2e-5,
        "training.gradient_checkpointing": True,
        "data.max_length": 1024,
        "data.packing": False,
        "data.eval_fraction": 0,
    },
)  # fmt: skip
