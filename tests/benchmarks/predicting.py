"""Rows a second of `predict`: in batches of rows of similar length against one by one, on the same rows.

    python tests/benchmarks/predicting.py RUN --data FILE [--rows N] [--max-new-tokens N]

FILE is repeated until there are N rows. Says both speeds, their ratio, and how many predictions differ: labels, tags,
spans and texts are compared as they are, probabilities to 1e-4.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from itertools import cycle, islice
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from tui_trainer.hardware.environment import prepare_environment

prepare_environment()

from tui_trainer.data.columns.text_columns import ColumnChoices
from tui_trainer.data.problems import ProblemList
from tui_trainer.data.sources.source import open_source
from tui_trainer.exporting.predicting import PredictionRequest, inference_device, predict_file
from tui_trainer.exporting.trained_model import TrainedModel
from tui_trainer.models.writing import Sampling
from tui_trainer.runs.registry import find_run


def without_chances(prediction: dict) -> dict:
    return {name: value for name, value in prediction.items() if not name.startswith("probabilit")}


def differs(one: dict, other: dict) -> bool:
    chances, others = (found.get("probabilities", {}) for found in (one, other))
    is_far = any(abs(chance - others.get(name, 9)) > 1e-4 for name, chance in chances.items())
    return is_far or without_chances(one) != without_chances(other)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--data", required=True)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--max-new-tokens", type=int, default=32)
    chosen = parser.parse_args()
    trained = TrainedModel.of(find_run(chosen.run))
    sampling = Sampling(max_new_tokens=chosen.max_new_tokens, temperature=0, seed=0)
    rows = open_source(chosen.data).rows(ProblemList(), choices=ColumnChoices(""))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        lines = (json.dumps({**row.values}) + "\n" for row in islice(cycle(list(rows)), chosen.rows))
        (place / "rows.jsonl").write_text("".join(lines))
        rates, found = [], []
        for name, batch_size in (("one by one", 1), ("in batches", 0)):
            asked = PredictionRequest(
                data=str(place / "rows.jsonl"), out=place / name, sampling=sampling, batch_size=batch_size
            )
            done = predict_file(trained, asked, lambda: inference_device(None), lambda *_: None)
            rates.append(done.rows / done.seconds)
            found.append([json.loads(line)["prediction"] for line in (place / name).open()])
            print(f"{name}: {done.rows:,} rows, {done.seconds:.1f} s, {rates[-1]:,.0f} rows/s", flush=True)
    count = sum(differs(one, other) for one, other in zip(*found, strict=True))
    print(f"{rates[1] / rates[0]:.1f} times as fast; {count} of {chosen.rows:,} predictions differ")


if __name__ == "__main__":
    main()
