"""A day with a GPU in three calls of 200, 240 and 110 seconds: everything that needs a card, the most valuable first.

    python -m tests.gpu.day --call A|B|C [--folder gpu-day]     what to carry to a server for the call, and the command
    python -m tests.gpu.day --run A|B|C|all [--carried gpu-day] [--out gpu-day] [--work FOLDER] [--minutes M] [--dry]

For a machine with one NVIDIA GPU, no network and a bare image: Python 3.11 or newer, torch 2.11, transformers 5.17 or
newer. What is missing comes from FOLDER/wheels (`python -m tests.gpu.wheels` fills it) and goes into the work folder;
the image stays as it is. `tests/gpu/calls.py` has the items of each call. One process carries them out; where it is
stuck or crashes, that is noted, and another one goes on with the next item. Each line of OUT/results.jsonl is there as
soon as it is known. A call goes on where the results that were carried end: first what was never tried, then what a
call cut short, last what failed in an earlier one.

--dry runs all but what needs a card or a compiler at tiny sizes on the CPU: exit code 1 when an item is not done.
`python -m tests.gpu.report OUT` makes the table.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

from tests.gpu.calls import CALL_SECONDS, CALLS, ITEMS, ROOT, card, waiting
from tests.gpu.results import FILE, Outcome, append, now, read
from tui_trainer.hardware.libraries import read_versions

MOST_CARRIED_BYTES = 64 * 2**20
_LEAST_SECONDS, _REST_SECONDS = 5.0, 5.0
# To load torch, and on a dry run also for each item: a machine of two cores that does much else.
_START_SECONDS, _DRY_SECONDS = 90.0, 600.0
# A process in the driver may take seconds to go.
_LONGEST_END_SECONDS = 30.0
_ERROR_LINES, _LINE_CHARACTERS = 15, 300
_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_MB = 1_000_000


def install(wheels: Path, target: Path) -> dict[str, Any]:
    """Bring what this machine lacks from the wheels into `target`; says what was lacking, and what still is."""
    from tests.gpu.wheels import canonicalize_name, closure, our_groups, wheels_in

    offered = wheels_in(wheels)
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


def environment(work: Path, packages: Path, *, dry: bool) -> dict[str, str]:
    """An item finds the wheels' packages and this checkout, no network, and a state folder of its own."""
    paths = [str(packages), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1", "TUI_TRAINER_HOME": str(work / "home"), "XDG_CONFIG_HOME": str(work / "config"),
        # As a run sets it, which is too late once a probe has used the card.
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", **({"CUDA_VISIBLE_DEVICES": ""} if dry else {}),
    }  # fmt: skip


def bring(carried: Path, out: Path) -> None:
    """Results that were carried go on in `out`; those that are there already may be of the same call, and longer."""
    source, target = carried / FILE, out / FILE
    out.mkdir(parents=True, exist_ok=True)
    here = target.stat().st_size if target.exists() else 0
    if source.exists() and source.stat().st_size > here:
        shutil.copy(source, target)


def sizes_to_carry(folder: Path) -> dict[str, int]:
    """Bytes of this checkout (what git tracks, and what it neither tracks nor ignores), wheels and results."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    ours = [ROOT / name for name in listed.stdout.split("\0") if name]
    return {
        "this checkout": sum(path.stat().st_size for path in ours if path.is_file()),
        str(folder / "wheels"): sum(path.stat().st_size for path in (folder / "wheels").glob("*.whl")),
        str(folder / FILE): (folder / FILE).stat().st_size if (folder / FILE).exists() else 0,
    }


def describe(call: str, folder: Path) -> int:
    """Print what to carry for a call, its command and what it will do. Exit code 1: it is too much to carry."""
    sizes, results = sizes_to_carry(folder), read(folder / FILE)
    together = sum(sizes.values())
    print(f"call {call}: {CALLS[call]}")
    for name, size in {**sizes, "together": together, "at most": MOST_CARRIED_BYTES}.items():
        print(f"{'carry' if name == 'this checkout' else '':8}{name:<30}{size / _MB:8.1f} MB")
    if not sizes[str(folder / "wheels")]:
        print(f"        no wheels: python -m tests.gpu.wheels {folder / 'wheels'}")
    # Longer than the call takes by itself: it writes down what it had to stop.
    print(f"run     timeout -s TERM {CALL_SECONDS[call] + 20:.0f} python3 -m tests.gpu.day --run {call} "
          f"--carried {folder} --out RESULTS")  # fmt: skip
    print(f"back    RESULTS/{FILE} into {folder}")
    for name in waiting(results, call):
        state = results.items[name].state if name in results.items else ""
        print(f"again   {name} ({state})" if state else f"to do   {name}")
    return int(together > MOST_CARRIED_BYTES)


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--call", choices=CALLS, help="print what to carry and to type")
    what.add_argument("--run", choices=[*CALLS, "all"], help="carry a call out, or all of them in one")
    parser.add_argument("--carried", "--folder", type=Path, default=Path("gpu-day"), help="wheels and earlier results")
    parser.add_argument("--out", type=Path, help="the folder of the results; by default what is carried")
    parser.add_argument("--work", type=Path, help="for models, packages and runs: up to 10 GB")
    parser.add_argument("--minutes", type=float, help="for everything; by default those of the call")
    parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    started, chosen = monotonic(), options(arguments)
    if chosen.call:
        return describe(chosen.call, chosen.carried)
    seconds = 60 * chosen.minutes if chosen.minutes else CALL_SECONDS.get(chosen.run, sum(CALL_SECONDS.values()))
    out = (chosen.out or chosen.carried).resolve()
    work = (chosen.work or Path(tempfile.gettempdir(), f"tui-trainer-gpu-day{'-dry' * chosen.dry}")).resolve()
    facts = {"dry": chosen.dry, "date": now()[:10], "card": None if chosen.dry else card(),
             "python": platform.python_version(), "cores": os.cpu_count()}  # fmt: skip
    if not chosen.dry and facts["card"] is None:
        print("nvidia-smi shows no card here; --dry runs everything at tiny sizes on the CPU", file=sys.stderr)
        return 2
    bring(chosen.carried.resolve(), out)
    if any(machine.get("dry") != chosen.dry for machine in read(out / FILE).machines):
        kind = "a card" if chosen.dry else "a dry run"
        print(f"the results in {out} are of {kind}: name another folder with --out", file=sys.stderr)
        return 2
    packages = work / "packages"
    facts |= install(chosen.carried / "wheels", packages)
    sys.path.insert(0, str(packages))
    facts["libraries"] = read_versions()
    append(out / FILE, {"call": chosen.run, "at": now(), "machine": facts})
    for library, version in facts["installed"].items():
        print(f"installed {library} {version} from the wheels: it was not here, or too old")
    for group, lacking in facts["lacking"].items():
        print(f"lacking for {group}: {', '.join(lacking)}")
    stop = Event()
    # However often it is pressed: what was started is ended, and has its line.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: stop.set())
    return _carry_out(chosen.run, out / FILE, work, started + seconds, stop, dry=chosen.dry)


def _carry_out(call: str, results: Path, work: Path, deadline: float, stop: Event, *, dry: bool) -> int:
    """Exit code 0: all items are done or have nothing to measure here; 1: not; 130: stopped."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    work.mkdir(parents=True, exist_ok=True)
    again = len(read(results).machines)
    deadline -= _REST_SECONDS
    while not stop.is_set() and deadline - monotonic() > _LEAST_SECONDS:
        if not (before := waiting(read(results), call, again=again, dry=dry)):
            break
        state, reason = _watch(call, results, work, deadline, stop, dry=dry)
        output = (work / "output.txt").read_text(encoding="utf-8", errors="replace")
        # The innermost calls of a process that was stuck or crashed, or its last words.
        _, has_stack, end = output.rpartition("(most recent call first):")
        lines = [line[:_LINE_CHARACTERS] for line in end.splitlines() if line.strip()]
        said = lines[:_ERROR_LINES] if has_stack else lines[-_ERROR_LINES:]
        for name, outcome in read(results).items.items():
            if outcome.state == "started" and outcome.call == again:
                append(results, {"name": name, "state": state, "reason": reason, "at": now(), "error": said})
                print(f"{name}: {state}, {reason}", *said[:3], sep="\n  | ", flush=True)
        if before == waiting(read(results), call, again=again, dry=dry):
            print(f"no item began: {reason}", *said, sep="\n", file=sys.stderr)
            break
    if stop.is_set():
        print("stopped; the same command goes on with what is not done")
        return 130
    found = read(results)
    missing = [name for name in waiting(found, call, dry=dry) if found.items.get(name, Outcome()).state != "skipped"]
    print(f"results are in {results}; `python -m tests.gpu.report {results.parent}` makes the table")
    print(f"not done: {', '.join(missing) or 'none'}")
    return int(bool(missing))


def _watch(call: str, results: Path, work: Path, deadline: float, stop: Event, *, dry: bool) -> tuple[str, str]:
    """Run a process with the items until it ends, is stuck, or the time is over: (state of its last item, reason)."""
    import psutil

    command = [sys.executable, "-m", "tests.gpu.calls", call, "--results", results, "--work", work,
               *(["--dry"] if dry else [])]  # fmt: skip
    env, again = environment(work / "run", work / "packages", dry=dry), len(read(results).machines)
    current, since, end = "", monotonic(), ("interrupted", "the call was stopped")
    with (work / "output.txt").open("wb") as output:
        worker = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=output, start_new_session=True,
                                  env=env)  # fmt: skip
    while not stop.wait(0.25):
        # In this order: it may begin and end items in between.
        code, found = worker.poll(), read(results)
        begun = (name for name, one in found.items.items() if one.state == "started" and one.call == again)
        if (running := next(begun, "")) != current:
            current, since = running, monotonic()
        limit = _DRY_SECONDS if dry else ITEMS[current].seconds if current else _START_SECONDS
        if code is not None:
            end = ("failed", f"the process ended with {code}")
            break
        if monotonic() > deadline:
            end = ("interrupted", f"the time of the call was over after {monotonic() - since:.0f} s of it")
            break
        if monotonic() - since > limit:
            end = ("stuck", f"not done in {limit:.0f} s")
            worker.send_signal(signal.SIGABRT)  # it prints where it is
            stop.wait(1)
            break
    until = monotonic() + _LONGEST_END_SECONDS
    while (children := psutil.Process().children(recursive=True)) and monotonic() < until:
        for process in children:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(children, timeout=1)
        worker.poll()
    return end


if __name__ == "__main__":
    sys.exit(main())
