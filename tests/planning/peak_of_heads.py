"""Trains one model for some steps in a process of its own, and prints its peak above what the libraries take."""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from tui_trainer.models.heads import auto_class

SMALL = {
    "hidden_size": 32, "d_model": 32, "num_hidden_layers": 1, "num_layers": 1, "num_decoder_layers": 1,
    "vocab_size": 64, "num_attention_heads": 2, "num_heads": 2, "d_kv": 16, "intermediate_size": 32, "d_ff": 32,
}  # fmt: skip


def resident_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def train(config: dict[str, Any], head: str, rows: int, row_tokens: int, answer: int) -> None:
    torch.manual_seed(0)
    model = auto_class(head).from_config(AutoConfig.for_model(**config)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    mask = torch.ones(rows, row_tokens, dtype=torch.int64)
    mask[0, row_tokens // 2 :] = 0
    inputs = {"input_ids": torch.randint(3, config["vocab_size"], (rows, row_tokens)), "attention_mask": mask}
    inputs["labels"] = torch.ones((rows, answer) if answer else rows, dtype=torch.int64)
    for step in range(4):
        loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del loss
        if step == 1:
            model.eval()
            with torch.inference_mode():
                model(**inputs)
            model.train()


def main() -> None:
    torch.set_num_threads(1)
    question = json.loads(sys.argv[1])
    config, head = question["config"], question["head"]
    small = {name: value for name, value in SMALL.items() if name in config}
    train(config | small, head, 2, 8, 4 if question["answer"] else 0)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
    before = resident_bytes("VmRSS")
    train(config, head, question["rows"], question["row_tokens"], question["answer"])
    print(resident_bytes("VmHWM") - before)


if __name__ == "__main__":
    main()
