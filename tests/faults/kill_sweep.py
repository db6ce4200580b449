"""Kill a run before every change that a save and a rotation make on the disk, resume it, compare to the bit.

    python tests/faults/kill_sweep.py [--each N] [--background] [--set KEY=VALUE]

One process loads the libraries and forks a child for each kill and each resume. A child runs the real command line
under an audit hook that counts creates, renames and unlinks below `checkpoints/` and ends the process at the chosen one
with SIGKILL. Files that Rust code writes raise no audit event: a wrapper counts those, and leaves a torn half. With
`--each 3` every third change is swept, with `--background` checkpoints are written while training continues, and with
`--set model.dtype=bfloat16` the optimizer has fp32 copies of the weights.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

SETTINGS = {
    "data.max_length": 16,
    "data.eval_fraction": 0.2,
    "model.scratch.hidden_size": 16,
    "model.scratch.num_hidden_layers": 1,
    "model.scratch.num_attention_heads": 2,
    "model.scratch.attention_dropout": 0.2,
    "training.max_steps": 12,
    "training.effective_batch_size": 6,
    "training.gradient_accumulation_steps": 3,
    "training.learning_rate": 0.01,
    "evaluation.eval_steps": 2,
    "evaluation.max_eval_rows": 6,
    "checkpoint.save_steps": 3,
    "checkpoint.save_total_limit": 1,
    "logging.sample_steps": 5,
    "logging.logging_steps": 4,
}
COMPARED = ("model.safetensors", "optimizer.safetensors")
SWEPT_STEP, NEXT_STEP = 6, 9
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Watch:
    """Counts changes on the disk, remembers them, and strikes before number `kill_at`: it ends the process."""

    def __init__(self, kill_at: int | None, strike: Callable[[], None] = kill_self) -> None:
        self.seen: list[str] = []
        self.kill_at = kill_at
        self.strike = strike

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[2], int) and args[2] & _WRITES:
            self.count("create", args[0])
        elif event in ("os.rename", "os.mkdir"):
            self.count(event, args[0])
        elif event in ("os.remove", "os.rmdir"):
            # rmtree unlinks by name within an open folder: those names have no path.
            inside = len(args) > 1 and args[1] not in (-1, None)
            self.count(event, args[0], inside=inside)

    def count(self, what: str, path: object, inside: bool = False, torn: Callable[[], None] | None = None) -> None:
        text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        if not inside and "/checkpoints/" not in text:
            return
        if self.kill_at == len(self.seen):
            if torn and self.strike is kill_self:
                torn()
            self.strike()
        self.seen.append(f"{what} {text.rsplit('/checkpoints/', 1)[-1]}")


def watch_rust_writers(watch: Watch) -> None:
    """safetensors and tokenizers write their files in Rust, where no audit event is raised."""
    from transformers import PreTrainedTokenizerFast

    from tui_trainer.training import checkpoint
    from tui_trainer.training import checkpoint as checkpoint_tensors

    save_file, save_pretrained = checkpoint.save_file, PreTrainedTokenizerFast.save_pretrained

    def watched_save_file(tensors: Any, path: Path, *args: Any, **kwargs: Any) -> None:
        # As strace shows it: safetensors creates a temporary file beside and renames it.
        temporary = path.with_name(".tmpKilled")

        def torn() -> None:
            save_file(tensors, temporary, *args, **kwargs)
            os.truncate(temporary, temporary.stat().st_size // 2)

        watch.count("create", f"{temporary} of {path.name}")
        watch.count("os.rename", f"{temporary} to {path.name}", torn=torn)
        save_file(tensors, path, *args, **kwargs)

    def watched_save_pretrained(self: Any, folder: Path, *args: Any, **kwargs: Any) -> Any:
        result = save_pretrained(self, folder, *args, **kwargs)
        path = Path(folder) / "tokenizer.json"
        watch.count("create", path, torn=path.unlink)
        return result

    checkpoint.save_file = checkpoint_tensors.save_file = watched_save_file  # type: ignore[assignment]
    PreTrainedTokenizerFast.save_pretrained = watched_save_pretrained  # type: ignore[method-assign]


def in_child(work: Callable[[], int]) -> int:
    """Run `work` in a forked child; its exit code, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def side_by_side(units: dict[str, Callable[[], str]], home: Path) -> dict[str, str]:
    """The results of all units, each in a process on a core of its own."""
    waiting, results, running = list(units.items()), {}, {}
    free = sorted(range(os.cpu_count() or 1))
    while waiting or running:
        if waiting and free:
            (name, work), core = waiting.pop(0), free.pop()
            pid = os.fork()
            if pid == 0:
                os.sched_setaffinity(0, {core})
                (home / f"result-{os.getpid()}").write_text(work())
                os._exit(0)
            running[pid] = (name, core)
        else:
            pid, _ = os.wait()
            name, core = running.pop(pid)
            free.append(core)
            results[name] = (home / f"result-{pid}").read_text()
    return results


def train(home: Path, name: str, text: Path, before: Callable[[], None] = lambda: None) -> int:
    """`tui-trainer --no-ui` on the text with SETTINGS."""
    from tui_trainer.cli import main

    before()
    sets = [f"--set={key}={value}" for key, value in SETTINGS.items()]
    return main(["--no-ui", f"--data={text}", f"--set=output.runs_dir={home}", f"--set=output.name={name}", *sets])


def resume(home: Path, name: str, before: Callable[[], None] = lambda: None) -> int:
    from tui_trainer.cli import main

    before()
    return main(["resume", str(home / name), "--no-ui"])


def hashes(run: Path) -> dict[str, str]:
    """XXH3-128 of the final weights and optimizer state, from the manifest of the last checkpoint."""
    manifest = json.loads(
        (run / "checkpoints" / f"step-{SETTINGS['training.max_steps']}" / "manifest.json").read_text()
    )
    return {name: manifest["files"][name]["xxh3_128"] for name in COMPARED}


def kill_at_step(step: int) -> None:
    """End the process with SIGKILL right after an optimizer step, before anything of it is written."""
    from tui_trainer.training.recorder import Recorder

    add = Recorder.add

    def killing(self: Recorder, done: int, report: Any) -> None:
        if done == step:
            os.kill(os.getpid(), signal.SIGKILL)
        add(self, done, report)

    Recorder.add = killing  # type: ignore[method-assign]


def leave_out_random_state() -> None:
    """The negative control: a resume that does not put back what dropout draws from."""
    import torch

    torch.set_rng_state = lambda state: None  # type: ignore[assignment]


def sweep(home: Path, each: int = 1) -> dict[str, Any]:
    """All kills and resumes; what was seen and swept, and which did not end in the same bits."""
    import transformers.models.llama.modeling_llama
    import transformers.models.llama.tokenization_llama  # noqa: F401

    import tui_trainer.training.run  # noqa: F401

    os.environ["TUI_TRAINER_HOME"] = str(home / "state")
    text = home / "text.txt"
    text.write_text("\n".join(f"{n} times {m} is {n * m}, said the {n}th sheep." for n in range(12) for m in range(3)))
    log = home / "events.json"

    def count_all() -> int:
        watch = Watch(None)
        watch_rust_writers(watch)
        sys.addaudithook(watch)
        code = train(home, "whole", text)
        log.write_text(json.dumps(watch.seen))
        return code

    # One core each: as many runs side by side as there are cores, and the same number of threads in all of them.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    assert in_child(count_all) == 0, "the uninterrupted run must succeed"
    wanted = hashes(home / "whole")
    events = json.loads(log.read_text())
    first = next(n for n, event in enumerate(events) if f"step-{SWEPT_STEP}" in event)
    last = next(n for n, event in enumerate(events) if f"step-{NEXT_STEP}" in event)
    units = {
        f"{number}: {events[number]}": partial(_kill_and_resume, home, text, f"killed-{number}", wanted, number)
        for number in range(first, last, each)
    }
    units["in the middle of an epoch"] = partial(_mid_epoch, home, text, "mid-epoch", wanted)
    units["control"] = partial(_mid_epoch, home, text, "control", wanted, leave_out_random_state)
    problems = side_by_side(units, home)
    control = problems.pop("control")
    different = [f"{name}: {problem}" for name, problem in problems.items() if problem]
    swept = events[first:last:each]
    return {"seen": events[first:last], "swept": swept, "different": different, "control": control}


def _kill_and_resume(home: Path, text: Path, name: str, wanted: dict[str, str], number: int) -> str:
    def before() -> None:
        watch = Watch(number)
        watch_rust_writers(watch)
        sys.addaudithook(watch)

    return _compare(home, text, name, wanted, before)


def _mid_epoch(
    home: Path, text: Path, name: str, wanted: dict[str, str], before_resume: Callable[[], None] = lambda: None
) -> str:
    return _compare(home, text, name, wanted, lambda: kill_at_step(8), before_resume)


def _compare(
    home: Path,
    text: Path,
    name: str,
    wanted: dict[str, str],
    before_train: Callable[[], None],
    before_resume: Callable[[], None] = lambda: None,
) -> str:
    """Why a killed and resumed run is not the uninterrupted one; empty when it is."""
    if (code := in_child(lambda: train(home, name, text, before_train))) != -signal.SIGKILL:
        return f"the run ended with {code} instead of being killed"
    if (code := in_child(lambda: resume(home, name, before_resume))) != 0:
        return f"the resume ended with {code}"
    return "" if hashes(home / name) == wanted else "the final weights or optimizer state differ"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=1, metavar="N", help="sweep every Nth change")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--background", action="store_true", help="write checkpoints while training continues")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting of the runs")
    asked = parser.parse_args()
    SETTINGS["checkpoint.save_in_background"] = str(asked.background).lower()
    SETTINGS |= (assignment.split("=", 1) for assignment in asked.set)
    with tempfile.TemporaryDirectory() as folder:
        report = sweep(Path(folder), asked.each)
    if asked.json:
        print(json.dumps(report))
    else:
        print("\n".join(report["swept"]))
        print(f"killed before {len(report['swept'])} changes on the disk and once in an epoch, resumed each time")
        print(f"different: {len(report['different'])} {report['different']}")
        print(f"negative control, random state left out: {report['control'] or 'NOT NOTICED'}")
    sys.exit(bool(report["different"]) or not report["control"])
