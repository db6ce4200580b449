"""What does not go together with DeepSpeed's ZeRO, on this machine and in this configuration."""

from collections.abc import Iterator

from tui_trainer.config.fields import names_in
from tui_trainer.config.load import LoadedConfig
from tui_trainer.errors import Problem
from tui_trainer.hardware.facts import Hardware
from tui_trainer.planning.processes import INSTALL_DEEPSPEED, SPLIT_OPTIMIZERS, STRATEGY, ZERO_STAGES, Strategy
from tui_trainer.planning.training_setup import TrainingSetup


def deepspeed_problems(
    loaded: LoadedConfig, hardware: Hardware, strategy: Strategy, setup: TrainingSetup
) -> list[Problem]:
    """Empty where another strategy is planned: one process has nothing to split."""
    if strategy not in ZERO_STAGES:
        return []
    if hardware.libraries.get("deepspeed") is None:
        message = f"{strategy} needs DeepSpeed, which is not installed"
        return [loaded.problem(STRATEGY, message, f"{INSTALL_DEEPSPEED}; or set {STRATEGY} = fsdp")]
    return [
        loaded.problem(key, f"{message} with {STRATEGY} = {strategy}", hint)
        for key, message, hint in _settings(loaded, setup)
    ]


def _settings(loaded: LoadedConfig, setup: TrainingSetup) -> Iterator[tuple[str, str, str]]:
    """(key, what is not done, what to set instead)."""
    config = loaded.config
    if config.tuning.in_four_bits:
        yield "tuning.method", "weights in 4 bits are not trained", f"set tuning.method = lora, or {STRATEGY} = ddp"
    if config.training.torch_compile:
        yield "training.torch_compile", "layers are not compiled", "set it to false"
    if setup.precision == "fp16":
        hint = f"set it to bf16 or no, or {STRATEGY} = ddp"
        yield "training.mixed_precision", "the loss scale of fp16 is not kept", hint
    if config.training.optim not in SPLIT_OPTIMIZERS:
        hint = f"set it to {' or '.join(SPLIT_OPTIMIZERS)}"
        yield "training.optim", f"the state of {config.training.optim} is not split", hint
    if setup.weights == "float16" and setup.method == "full":
        yield "model.dtype", "weights of float16 are not trained", "set it to bfloat16 or float32"
    is_classifier = setup.head in ("sequence_classification", "token_classification")
    if setup.has_adapter and setup.weights != "float32" and (names_in(config.tuning.modules_to_save) or is_classifier):
        # They are of 16 bits beside adapters in fp32, and a flat tensor has one kind of numbers.
        message = "modules that train as a whole, in 16 bits beside their adapters, are not split"
        yield "model.dtype", message, f"set it to float32, or {STRATEGY} = fsdp"
    if config.tuning.use_dora and setup.has_adapter:
        yield "tuning.use_dora", "weights that DoRA reads in other layers are not gathered", "set it to false"
