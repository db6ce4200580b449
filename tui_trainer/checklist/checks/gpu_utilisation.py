"""A card that waits for data, for the journal or for small batches costs as much as one that works."""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable


@check(
    order=170,
    title="GPU kept busy",
    needs_plan=False,
)
def look(context: Context) -> Verdict:
    gpus = context.hardware.gpus
    if not gpus:
        return not_applicable(
            "no GPU on this machine; while a run is going, the Train screen shows how busy the CPU is"
        )
    used = [f"GPU {gpu.index} {gpu.utilisation_share:.0%}" for gpu in gpus if gpu.utilisation_share is not None]
    now = ", ".join(used) if used else f"{len(gpus)} GPUs, not reported"
    then = "the Train screen shows it while a run is going" if context.device == "cuda" else "this run is on the CPU"
    return not_applicable(f"before a run there is nothing to measure ({now} busy); {then}")
