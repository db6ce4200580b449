"""Is the card slowed down by heat or by its power limit?"""

from tui_trainer.doctor.contract import Cause, diagnosis, percent
from tui_trainer.doctor.view import RunView


@diagnosis(
    order=160,
    title="Card throttled",
    guides=("B key metrics", "C troubleshooting 1"),
    why="A card that is too hot or at its power limit lowers its clock, and every kernel takes longer.",
)
def look(view: RunView) -> Cause | None:
    slowed = [gpu for reading in view.readings for gpu in reading.gpus if gpu.slowed_by]
    asked = sum(gpu.slowed_by is not None for reading in view.readings for gpu in reading.gpus)
    clock = view.gpu_mean(lambda gpu: gpu.clock_share)
    if not slowed or clock is None or not asked:
        return None
    share = (1 - clock) * len(slowed) / asked
    hot = max((gpu.temperature_celsius for gpu in slowed if gpu.temperature_celsius is not None), default=None)
    by = slowed[-1].slowed_by
    degrees = f", up to {hot:.0f} degrees Celsius" if hot is not None else ""
    return Cause(
        cause="The card runs below its clock: it is too hot, or draws all the power that it may.",
        evidence=f"slowed by {by} in {percent(len(slowed) / asked)} of readings, clock at {percent(clock)}{degrees}",
        share=share,
        advice="see the air flow of the machine" if by == "heat" else "raise the limit: nvidia-smi --power-limit=WATTS",
    )
