"""One command for the day on which there is a card: everything that needs one, the most valuable first.

    python -m tests.gpu.day --out FOLDER [--minutes 40] [--wheels FOLDER] [--only NAMES] [--dry]

For a machine with one NVIDIA GPU, no network and a bare image: Python 3.11 or newer, torch 2.11, transformers 5.17 or
newer. What is missing comes from a folder of wheels (`python -m tests.gpu.wheels` fills it) and goes into FOLDER; the
image stays as it is. Each part is a child process with a limit of time, and its end is one line of
FOLDER/results.jsonl. A part that fails or takes too long costs its own figures only. Started again with the same
folder, the parts that are done are left out; --only runs the named ones again. `python -m tests.gpu.report FOLDER`
makes the table.

--dry runs all parts at tiny sizes on the CPU: exit code 1 when one of them failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS, FIGURES, OUTPUT = "results.jsonl", "figures.json", "output.txt"
# What each part may have of the time, the most valuable first. What one leaves over is for those after it.
SHARES = {"start": 8, "tests": 14, "memory": 16, "speed": 27, "switches": 14, "resume": 8, "time": 6, "trace": 7}
SKIPPED = 77
_GRACE_SECONDS, _TELL_SECONDS, _POLL_SECONDS = 10.0, 60.0, 0.2
_ERROR_LINES, _TOLD_CHARACTERS = 15, 200
_LIBRARIES = ("torch", "transformers", "peft", "accelerate", "datasets", "bitsandbytes", "liger-kernel", "kernels",
              "torchao", "trl", "unsloth", "flash-attn", "triton", "pyarrow", "textual")  # fmt: skip
_CARD_FIELDS = ("name", "memory.total", "driver_version", "compute_cap", "power.limit")


@dataclass(kw_only=True)
class Line:
    """How a part ended: `done`, `failed`, `timeout`, `skipped` or `interrupted`. Figures that were written before a
    failure are kept."""

    name: str
    started: str
    seconds: float
    state: str
    reason: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    error: list[str] = field(default_factory=list)


def append(out: Path, line: Line) -> None:
    with (out / RESULTS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(line)) + "\n")


def read_lines(out: Path) -> list[dict[str, Any]]:
    """The lines of a folder, the newest of each name; a torn one, as a power cut leaves it, does not count."""
    path, found = out / RESULTS, {}
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        with suppress(ValueError):
            line = json.loads(text)
            if isinstance(line, dict) and isinstance(line.get("name"), str):
                found[line["name"]] = line
    return list(found.values())


def run_part(
    name: str,
    command: Sequence[str],
    work: Path,
    *,
    limit_seconds: float,
    env: Mapping[str, str],
    is_stopped: Callable[[], bool] = lambda: False,
) -> Line:
    """Run a part in a process group of its own, which ends with the part, at the limit, or when it is stopped."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    line = Line(name=name, started=datetime.now(UTC).isoformat(timespec="seconds"), seconds=0.0, state="done")
    started = told = monotonic()
    with (work / OUTPUT).open("wb") as output:
        child = subprocess.Popen(command, cwd=ROOT, env=dict(env), stdin=subprocess.DEVNULL, stdout=output,
                                 stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        try:
            while child.poll() is None and monotonic() - started < limit_seconds and not is_stopped():
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_POLL_SECONDS)
                if monotonic() - told > _TELL_SECONDS:
                    told = monotonic()
                    print(f"{name}: {told - started:.0f} of at most {limit_seconds:.0f} s", flush=True)
            if is_stopped():
                line.state, line.reason = "interrupted", "stopped by hand"
            elif child.poll() is None:
                line.state, line.reason = "timeout", f"not done in {limit_seconds:.0f} s"
        finally:
            end_group(child)
    line.seconds = round(monotonic() - started, 1)
    line.figures = _figures(work / FIGURES)
    if line.state == "done" and child.returncode == SKIPPED:
        line.state, line.reason = "skipped", str(line.figures.pop("skipped", "no reason given"))
    elif line.state == "done" and child.returncode:
        line.state, line.reason = "failed", f"exit code {child.returncode}"
    if line.state in ("failed", "timeout"):
        text = (work / OUTPUT).read_text(encoding="utf-8", errors="replace")
        line.error = [row[:500] for row in text.splitlines() if row.strip()][-_ERROR_LINES:]
    return line


def end_group(child: subprocess.Popen[bytes]) -> None:
    """End a child and whatever it started in its process group: asked first, then killed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            break
        until = monotonic() + _GRACE_SECONDS
        while monotonic() < until and _is_alive(child):
            with suppress(subprocess.TimeoutExpired):
                child.wait(_POLL_SECONDS)
    child.wait()


def _is_alive(child: subprocess.Popen[bytes]) -> bool:
    """Whether anything of the group runs; the child itself counts until it was waited for."""
    child.poll()
    try:
        os.killpg(child.pid, 0)
    except ProcessLookupError:
        return False
    return True


def _figures(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def machine_facts(*, dry: bool) -> dict[str, Any]:
    """The card as `nvidia-smi` has it, and what it is in."""
    facts: dict[str, Any] = {"dry": dry, "date": datetime.now(UTC).date().isoformat(), "card": None if dry else card()}
    return facts | {"python": platform.python_version(), "cores": os.cpu_count()}


def card() -> dict[str, str] | None:
    """The first card, by the names of nvidia-smi; None where there is no such program, or no card."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, f"--query-gpu={','.join(_CARD_FIELDS)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60)
    rows = done.stdout.strip().splitlines()
    if done.returncode or not rows:
        return None
    return dict(zip(_CARD_FIELDS, (value.strip() for value in rows[0].split(",")), strict=False))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def install(wheels: Path | None, target: Path) -> dict[str, Any]:
    """Bring what this machine lacks from the wheels into `target`; says what was lacking, and what still is."""
    from tests.gpu.wheels import canonicalize_name, closure, our_groups, wheels_in

    offered = wheels_in(wheels) if wheels else {}
    candidates = {name: candidate for name, (_, candidate) in offered.items()}
    places = [str(path) for path in (target, *filter(None, sys.path))]
    # The first of a name is the one that is imported.
    rows = reversed(list(metadata.distributions(path=places)))
    have = {str(canonicalize_name(row.name)): row.version for row in rows if row.name}
    python = ".".join(platform.python_version_tuple()[:2])
    taken: list[str] = []
    lacking: dict[str, list[str]] = {}
    for group in our_groups():
        found = closure(group.requirements, candidates, have, python)
        if found.lacking:
            lacking[group.name] = found.lacking
        if not found.lacking or group.name == "what runs need":
            taken += found.taken
            have |= {name: candidates[name].version for name in found.taken}
    if taken:
        if not find_spec("pip"):
            sys.exit("pip is missing here, and these are to be installed: " + ", ".join(taken))
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile",
                   "--target", str(target), *(str(offered[name][0]) for name in taken)]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"pip could not install the wheels:\n{done.stderr[-3000:]}")
    return {"installed": {name: candidates[name].version for name in taken}, "lacking": lacking}


def refusal(lines: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> str:
    """Why the folder of an earlier day cannot be gone on with; empty: it can, or it is new."""
    earlier = next((line.get("figures", {}) for line in lines if line["name"] == "machine"), None)
    if lines and earlier is None:
        return "its lines do not say which machine they are from"
    if earlier and (earlier.get("dry"), earlier.get("card")) != (facts["dry"], facts["card"]):
        kind = "a dry run" if earlier.get("dry") else str((earlier.get("card") or {}).get("name", "no card"))
        return f"its lines are of {kind}"
    return ""


def parts_to_run(lines: Sequence[Mapping[str, Any]], only: Sequence[str]) -> dict[str, str]:
    """Each part, with why it is left out; empty: it runs."""
    ended = {line["name"]: line.get("state") for line in lines}
    found = {}
    for name in SHARES:
        if only:
            found[name] = "" if name in only else "not among --only"
        else:
            found[name] = "done before" if ended.get(name) == "done" else ""
    return found


def environment(out: Path, work: Path, packages: Path, *, dry: bool) -> dict[str, str]:
    """A part finds the wheels' packages and this checkout, no network, and a state folder of its own."""
    paths = [str(packages), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TUI_TRAINER_HOME": str(work / "home"),
        "XDG_CONFIG_HOME": str(work / "config"),
        **({"CUDA_VISIBLE_DEVICES": ""} if dry else {}),
    }


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the results")
    parser.add_argument("--minutes", type=float, default=40.0, help="for all parts together")
    parser.add_argument("--wheels", type=Path, help="what tests.gpu.wheels has fetched")
    parser.add_argument("--only", default="", help=f"some of {','.join(SHARES)}")
    parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU")
    chosen = parser.parse_args(arguments)
    chosen.only = [name for name in chosen.only.split(",") if name]
    if unknown := set(chosen.only) - set(SHARES):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(SHARES)}")
    if chosen.wheels and not chosen.wheels.is_dir():
        parser.error(f"{chosen.wheels} is no folder; `python -m tests.gpu.wheels {chosen.wheels}` fills it")
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = options(arguments)
    deadline, out = monotonic() + 60 * chosen.minutes, chosen.out.resolve()
    facts, lines = machine_facts(dry=chosen.dry), read_lines(out)
    if why := refusal(lines, facts):
        print(f"{chosen.out} is in use: {why}. Name another folder with --out", file=sys.stderr)
        return 2
    if not chosen.dry and facts["card"] is None:
        print("nvidia-smi shows no card here; --dry runs everything at tiny sizes on the CPU", file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    started, packages = datetime.now(UTC).isoformat(timespec="seconds"), out / "packages"
    facts |= install(chosen.wheels, packages)
    sys.path.insert(0, str(packages))
    facts["libraries"] = {name: _version(name) for name in _LIBRARIES}
    append(out, Line(name="machine", started=started, seconds=0.0, state="done", figures=facts))
    for name, version in facts["installed"].items():
        print(f"installed {name} {version} from the wheels: it was not here, or too old")
    for group, lacking in facts["lacking"].items():
        print(f"lacking for {group}: {', '.join(lacking)}")
    stop = Event()
    # However often it is pressed: what was started is ended, and said.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: stop.set())
    ends: list[str] = []
    waiting = [name for name, why in parts_to_run(lines, chosen.only).items() if not _told_left_out(name, why)]
    while waiting and not stop.is_set():
        name, shares = waiting[0], sum(SHARES[part] for part in waiting)
        waiting = waiting[1:]
        limit, work = max(0.0, deadline - monotonic()) * SHARES[name] / shares, out / name
        print(f"{name}: at most {limit:.0f} s", flush=True)
        command = [sys.executable, "-m", "tests.gpu.parts", name, "--work", str(work), "--models", str(out / "models"),
                   "--seconds", f"{limit:.0f}", *(["--dry"] if chosen.dry else [])]  # fmt: skip
        env = environment(out, work, packages, dry=chosen.dry)
        line = run_part(name, command, work, limit_seconds=limit, env=env, is_stopped=stop.is_set)
        append(out, line)
        words = f"{name}: {line.state} in {line.seconds:.0f} s" + (f", {line.reason}" if line.reason else "")
        print("\n".join([words, *(f"  | {row[:_TOLD_CHARACTERS]}" for row in line.error[-3:])]), flush=True)
        ends.append(line.state)
    if stop.is_set():
        print("stopped; the same command goes on with what is not done")
        return 130
    print(f"results are in {chosen.out / RESULTS}; `python -m tests.gpu.report {chosen.out}` makes the table")
    return int(any(state in ("failed", "timeout") for state in ends))


def _told_left_out(name: str, why: str) -> bool:
    if why == "done before":
        print(f"{name}: {why}")
    return bool(why)


if __name__ == "__main__":
    sys.exit(main())
