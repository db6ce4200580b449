"""Compare the preference losses with TRL's, over 20 steps of a tiny model in fp32.

    python tests/benchmarks/against_trl.py TRL_PYTHON

`TRL_PYTHON` is the interpreter of an environment with trl, which the program itself never needs. Each step has all
rows, so their order does not matter. Rows are conversations, and none is truncated, so both programs train on the same
tokens. ORPO is not compared: TRL adds the cross entropy of prompt and answer, the paper that of the answer. The pairs
have margins, which only reward models use. For KTO, TRL gives the first prompt the last answer of the batch, and this
program gives it the second one: both are equal.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

STEPS, RATE = 20, 1e-3
LOSSES: dict[str, dict[str, float]] = {
    "sigmoid": {}, "ipo": {}, "robust": {"label_smoothing": 0.1}, "sigmoid_norm": {"beta": 5.0},
    "simpo": {"beta": 2.0, "simpo_gamma": 1.0}, "cpo": {}, "kto": {"desirable_weight": 1.5, "undesirable_weight": 0.8},
    "reward": {"center_rewards_coefficient": 0.01},
}  # fmt: skip
TASKS = {name: {"task.type": name} for name in ("kto", "reward")}
# Nothing follows the end of a turn, which TRL would train on and this program would not. TRL's CPO adds a missing BOS.
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}\n{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant\n{% endif %}"
)
ANIMALS = ("cat", "dog", "owl", "fox", "hen", "bat", "ant", "eel")


def pairs() -> list[dict[str, Any]]:
    """Return rows whose answers have different lengths."""
    rows = []
    for number, animal in enumerate(ANIMALS):
        other = ANIMALS[(number + 3) % len(ANIMALS)]
        chosen, rejected = f"{animal} {'runs ' * (number % 4)}home", f"{other} {'sleeps ' * (number % 3)}late"
        row = {"prompt": ("user", f"Name animal {number}"), "chosen": ("assistant", chosen)}
        row["rejected"] = ("assistant", rejected)
        conversations = {name: [{"role": role, "content": text}] for name, (role, text) in row.items()}
        rows.append({**conversations, "margin": number / 4 + 0.1})
    return rows


def marked_answers() -> list[dict[str, Any]]:
    """Return rows with one answer, every third of which is undesirable. The KL term becomes positive."""
    rows = []
    for number, pair in enumerate(pairs()):
        is_desirable = number % 3 > 0
        rows.append(
            {
                "prompt": pair["prompt"],
                "completion": pair["chosen" if is_desirable else "rejected"],
                "label": is_desirable,
            }
        )
    rows[-1]["completion"] = rows[1]["completion"]
    return rows


def train_with_trl(folder: Path, loss_type: str) -> list[dict[str, float]]:
    """Return loss and gradient norm of each step. Runs in the environment with trl."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    settings = LOSSES[loss_type]
    common = {
        "output_dir": str(folder / f"trl-{loss_type}"), "max_steps": STEPS, "learning_rate": RATE, "logging_steps": 1,
        "per_device_train_batch_size": len(ANIMALS), "lr_scheduler_type": "constant", "weight_decay": 0.0,
        "max_grad_norm": 1.0, "use_cpu": True, "bf16": False, "report_to": [], "save_strategy": "no", "seed": 0,
        "gradient_checkpointing": False, "max_length": 256, "beta": settings.get("beta", 0.1),
    }  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    model: Any = AutoModelForCausalLM.from_pretrained(folder / "model", dtype="float32")
    data: Any = Dataset.from_list(marked_answers() if loss_type == "kto" else pairs())
    trainer: Any
    if loss_type == "reward":
        from trl import RewardConfig, RewardTrainer

        del common["beta"]
        model = AutoModelForSequenceClassification.from_pretrained(folder / "reward", dtype="float32")
        reward_config = RewardConfig(**common, **settings)
        trainer = RewardTrainer(model, args=reward_config, train_dataset=data, processing_class=tokenizer)
    elif loss_type == "kto":
        from trl import KTOConfig, KTOTrainer

        kto_config = KTOConfig(**common, **settings)
        trainer = KTOTrainer(model, args=kto_config, train_dataset=data, processing_class=tokenizer)
    elif loss_type in ("simpo", "cpo"):
        from trl.experimental.cpo import CPOConfig, CPOTrainer

        is_simpo = loss_type == "simpo"
        extra = {"loss_type": "simpo", "simpo_gamma": settings["simpo_gamma"], "cpo_alpha": 0.0} if is_simpo else {}
        trainer = CPOTrainer(model, CPOConfig(**common, **extra), train_dataset=data, processing_class=tokenizer)
    else:
        from trl import DPOConfig, DPOTrainer

        config = DPOConfig(**common, loss_type=[loss_type], label_smoothing=settings.get("label_smoothing", 0.0))
        trainer = DPOTrainer(model, args=config, train_dataset=data, processing_class=tokenizer)
    trainer.train()
    return [
        {"loss": log["loss"], "grad_norm": log["grad_norm"]} for log in trainer.state.log_history if "grad_norm" in log
    ]


def train_ours(folder: Path, loss_type: str) -> list[dict[str, float]]:
    """Return loss and gradient norm of each step of this program's run."""
    settings = TASKS.get(loss_type, {"task.type": "preference", "task.loss_type": loss_type}) | {
        "model.model_name_or_path": folder / ("reward" if loss_type == "reward" else "model"),
        "data.path": folder / ("marked.jsonl" if loss_type == "kto" else "pairs.jsonl"), "data.eval_fraction": 0,
        "training.max_steps": STEPS, "tuning.method": "full",
        "training.learning_rate": RATE, "training.effective_batch_size": len(ANIMALS), "training.weight_decay": 0,
        "training.lr_scheduler_type": "constant", "training.warmup_steps": 0, "training.adam_beta2": 0.999,
        "training.label_smoothing_factor": 0, "output.runs_dir": folder / "runs", "output.name": loss_type,
        "training.max_grad_norm": 1.0, "model.dtype": "float32", "training.num_train_epochs": STEPS,
    }  # fmt: skip
    settings |= {f"task.{name}": value for name, value in LOSSES[loss_type].items()}
    assignments = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    subprocess.run([sys.executable, "-m", "tui_trainer", "--no-ui", *assignments], check=True, capture_output=True)
    events = map(json.loads, (folder / "runs" / loss_type / "journal.jsonl").read_text().splitlines())
    return [
        {"loss": e["loss_sum"] / e["tokens"], "grad_norm": e["grad_norm"]} for e in events if e["event"] == "StepDone"
    ]


def main() -> None:
    if len(sys.argv) == 4:
        print(json.dumps(train_with_trl(Path(sys.argv[2]), sys.argv[3])))
        return
    from transformers import AutoModelForSequenceClassification

    from tests.tiny_models import save_tiny_model, tiny_tokenizer

    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        os.environ["TUI_TRAINER_HOME"] = str(folder / "home")
        save_tiny_model(folder / "model", "llama")
        scorer: Any = AutoModelForSequenceClassification.from_pretrained(folder / "model", num_labels=1)
        scorer.save_pretrained(folder / "reward")
        tiny_tokenizer("llama").save_pretrained(folder / "reward")
        for name in ("model", "reward"):
            (folder / name / "chat_template.jinja").write_text(TEMPLATE)
        for file_name, rows in (("pairs.jsonl", pairs()), ("marked.jsonl", marked_answers())):
            (folder / file_name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        print("loss           first   last  largest difference of losses, of gradient norms (relative)")
        for loss_type in LOSSES:
            command = [sys.argv[1], __file__, "--trl", str(folder), loss_type]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            theirs, ours = json.loads(output.splitlines()[-1]), train_ours(folder, loss_type)
            assert len(theirs) == len(ours) == STEPS, (len(theirs), len(ours))
            differences = [
                max(abs(a[key] - b[key]) / max(1.0, abs(b[key])) for a, b in zip(ours, theirs, strict=True))
                for key in ("loss", "grad_norm")
            ]
            losses = f"{ours[0]['loss']:7.4f} {ours[-1]['loss']:7.4f}"
            print(f"{loss_type:12} {losses} {differences[0]:.1e} {differences[1]:.1e}", flush=True)


if __name__ == "__main__":
    main()
