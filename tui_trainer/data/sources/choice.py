"""What of the data that a config names is asked for."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What of a path is wanted: a configuration, splits (`train`, `train[:10%]+validation`), a revision of the hub; and
    whether what is not on this machine is read from there.

    Empty stands for the only one or the default; of splits that is the one to train on or, with `measured`, to evaluate
    on.
    """

    name: str = ""
    split: str = ""
    revision: str = ""
    streaming: bool = False
    measured: bool = False

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that are named, without their slices."""
        return tuple(part.partition("[")[0].strip() for part in self.split.split("+")) if self.split.strip() else ()

    @property
    def split_setting(self) -> str:
        return "data.eval_split" if self.measured else "data.split"
