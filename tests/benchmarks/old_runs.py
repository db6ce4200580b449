"""Old runs, gone on with by this checkout and by another one: the same losses and the same weights, to the bit.

    python tests/benchmarks/old_runs.py OTHER_CHECKOUT

Both programs go on with the stopped runs of `tests/fixtures/old_runs` on this machine, on one thread. Each checkout has
its environment in .venv. Exits with 1 where a loss, a score or a tensor differs. For a change that could touch what is
learnt: once, beside the commit before it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

HERE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HERE))

from tests.old_runs import STOPPED, Curve, install, resume


def weights(run: Path) -> dict[str, np.ndarray]:
    """Of the final model and of the last checkpoint, the optimizer's state with it."""
    files = sorted(run.glob("model/*.safetensors")) + sorted(run.glob("checkpoints/step-*/*.safetensors"))
    assert len(files) >= 4, files
    return {f"{path.relative_to(run)}: {name}": tensor for path in files for name, tensor in load_file(path).items()}


def differences(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> list[str]:
    odd = sorted(one.keys() ^ other.keys())
    return odd + [name for name in sorted(one.keys() & other.keys()) if one[name].tobytes() != other[name].tobytes()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    checkouts = (HERE, parser.parse_args().other.resolve())
    found: dict[str, list[tuple[Curve, dict[str, np.ndarray]]]] = {name: [] for name in STOPPED}
    for checkout in checkouts:
        with tempfile.TemporaryDirectory() as place:
            install(Path(place))
            for name in STOPPED:
                curve = resume(checkout, Path(place), name)
                found[name].append((curve, weights(Path(place) / "runs" / name)))
    same = True
    for name, ((curve, here), (other_curve, there)) in found.items():
        steps = [step for step, loss in curve.losses.items() if other_curve.losses.get(step) != loss]
        others = differences(here, there)
        is_same = curve == other_curve and not others
        same &= is_same
        values = sum(tensor.size for tensor in here.values())
        print(
            f"{name}: {len(curve.losses)} losses, {len(curve.evaluations)} evaluations, {len(here)} tensors of "
            f"{values:,} numbers: {'equal to the bit' if is_same else 'DIFFERENT'}"
        )
        if steps:
            largest = max(abs(curve.losses[step] - other_curve.losses.get(step, float("nan"))) for step in steps)
            print(f"  losses differ from step {steps[0]} on, by {largest:.2e} at the most")
        if others:
            print(f"  {len(others)} tensors differ, first {others[0]}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
