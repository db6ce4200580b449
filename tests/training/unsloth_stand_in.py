"""What Unsloth offers, with nothing of what it does: the model by transformers and its adapters by peft.

Source of names and arguments: `FastLanguageModel` of unsloth 2026.10.9, `unsloth/models/loader.py` and `llama.py`.
"""

import sys
from pathlib import Path

IMPORTED_FIRST = "transformers" not in sys.modules
print("Unsloth greets")


class FastLanguageModel:
    @staticmethod
    def from_pretrained(model_name, max_seq_length, dtype, load_in_4bit, load_in_16bit, full_finetuning, device_map,
                        trust_remote_code, use_gradient_checkpointing, use_exact_model_name,
                        local_files_only):  # fmt: skip
        from transformers import AutoModelForCausalLM, AutoTokenizer

        assert IMPORTED_FIRST and not load_in_4bit and load_in_16bit != full_finetuning and max_seq_length >= 64
        model = AutoModelForCausalLM.from_pretrained(model_name, dtype=dtype, local_files_only=local_files_only)
        if use_gradient_checkpointing == "unsloth":
            model.gradient_checkpointing_enable({"use_reentrant": False})
        print("Unsloth has loaded", model_name)
        Path(__file__).with_name("loaded").touch()
        return model, AutoTokenizer.from_pretrained(model_name)

    @staticmethod
    def get_peft_model(model, r, lora_alpha, lora_dropout, target_modules, modules_to_save, use_rslora,
                       use_gradient_checkpointing, random_state):  # fmt: skip
        import torch
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(random_state)
        config = LoraConfig(
            task_type="CAUSAL_LM", r=r, lora_alpha=lora_alpha, lora_dropout=lora_dropout, use_rslora=use_rslora,
            target_modules=target_modules, modules_to_save=modules_to_save,
        )  # fmt: skip
        return get_peft_model(model, config)
