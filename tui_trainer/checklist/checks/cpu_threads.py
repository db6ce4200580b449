"""Fewer threads than cores leave cores idle; more of them take turns and wait for each other.

Source: the documentation of PyTorch on CPU threading.
"""

from tui_trainer.checklist.contract import Context, Verdict, check, passed, warned

# Measured on 2 cores beside one busy process, milliseconds a step: threads that never sleep 3465, that soon do 340.
_SPINNING = "threads that wait never sleep, and one other program makes a step ten times as long"


@check(
    order=50,
    title="CPU threads match the cores",
)
def look(context: Context) -> Verdict:
    threads, environment = context.planned.threads.value, context.environment
    wrong: list[tuple[str, str]] = []
    if environment.get("OMP_WAIT_POLICY", "").lower() == "active":
        wrong.append(("OMP_WAIT_POLICY", f"OMP_WAIT_POLICY=active: {_SPINNING}"))
    for name in ("OMP_THREAD_LIMIT", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        asked = environment.get(name, "").split(",")[0]
        if asked.isdigit() and int(asked) < threads:
            wrong.append((name, f"{name}={asked}, the plan has {threads} threads"))
        elif name == "OMP_NUM_THREADS" and asked.isdigit() and int(asked) > context.hardware.usable_cores:
            wrong.append((name, f"{name}={asked} for {context.hardware.usable_cores} usable cores"))
    if wrong:
        return warned("; ".join(words for _, words in wrong), advice="unset " + " ".join(name for name, _ in wrong))
    logical = context.hardware.logical_cores
    seen = f", {logical} logical ones" if logical else ""
    return passed(
        f"{threads} threads on {context.hardware.usable_cores} usable cores{seen}, set by the run itself",
        switch=f"{threads} CPU threads",
    )
