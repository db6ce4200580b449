"""Where a trained model is tried: on the card that is asked for or the freest one, else on the CPU."""

import torch

from tui_trainer.hardware.diagnosis import GpuChoice, choose_gpu, training_device
from tui_trainer.hardware.probe import probe
from tui_trainer.models.cards import card_index


def inference_device(choice: GpuChoice) -> torch.device:
    """Raises InputError for a card that there is not."""
    hardware = probe()
    gpu, _ = choose_gpu(hardware.gpus, choice)
    if gpu is None or training_device(hardware, gpu)[0] != "cuda":
        return torch.device("cpu")
    return torch.device("cuda", card_index(gpu.cuda_uuid))
