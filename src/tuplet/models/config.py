"""The configuration of an embedder as plain data."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from tuplet.errors import OptionError, opt
from tuplet.models.backbone import LEVELS
from tuplet.models.preprocessing import Preprocessing

Pooling: TypeAlias = Literal["mean", "max", "mean+max", "class", "class+mean"]
Normalize: TypeAlias = bool | Literal["eval"]
#: The options of `models.create` that divide an embedding into parts, whatever the backbone.
PART_OPTIONS = ("heads", "head_hidden", "attention", "part_weights")


@dataclass(frozen=True)
class Config:
    """Everything about an embedder except its weights; the fields are those of `models.create`."""

    architecture: str
    options: Mapping[str, Any]
    dim: int | None
    levels: str
    pooling: Pooling
    normalize: Normalize
    preprocessing: Preprocessing | None
    layer_norm: bool = False
    heads: Sequence[int] | None = None
    head_hidden: int | None = None
    attention: int | None = None
    part_weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if not self.levels or len(set(self.levels)) < len(self.levels) or not set(self.levels) <= set(LEVELS):
            raise OptionError(f"{opt('levels')} is {self.levels!r}; it must be one or more of L, M and H")
        object.__setattr__(self, "levels", "".join(level for level in LEVELS if level in self.levels))
        is_integer = isinstance(self.dim, int | np.integer) and not isinstance(self.dim, bool)
        if self.dim is not None and not (is_integer and self.dim > 0):
            raise OptionError(f"{opt('dim')} is {self.dim!r}; it must be a positive integer or None")
        if self.pooling not in get_args(Pooling):
            raise OptionError(f"{opt('pooling')} is {self.pooling!r}; it must be one of {', '.join(get_args(Pooling))}")
        if not isinstance(self.normalize, bool) and self.normalize != "eval":
            raise OptionError(f"{opt('normalize')} is {self.normalize!r}; it must be True, False or 'eval'")
        self._check_parts()

    def _check_parts(self) -> None:
        for name in ("head_hidden", "attention"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | np.integer) and value > 0):
                raise OptionError(f"{opt(name)} is {value!r}; it must be a positive integer or None")
        if self.heads is not None and (not all(width > 0 for width in self.heads) or sum(self.heads) != self.dim):
            raise OptionError(
                f"{opt('heads')} is {list(self.heads)} and {opt('dim')} {self.dim}; the widths must be positive and "
                "their sum must be dim"
            )
        if self.attention is not None and self.levels != "H":
            raise OptionError(f"{opt('attention')} needs {opt('levels', 'H')}, and levels is {self.levels!r}")
        if self.part_weights is not None:
            if len(self.part_weights) != self.parts or not all(weight > 0 for weight in self.part_weights):
                raise OptionError(
                    f"{opt('part_weights')} is {list(self.part_weights)}; give {self.parts} numbers above 0, one for "
                    "each part"
                )
            if self.normalize is False:
                raise OptionError(f"{opt('part_weights')} needs parts of unit length; use {opt('normalize', True)}")

    @property
    def parts(self) -> int:
        """The number of parts of an embedding: levels, times heads or attention masks."""
        return len(self.levels) * len(self.heads or (0,)) * (self.attention or 1)

    def stored(self) -> dict[str, Any]:
        """Return what is saved and fingerprinted: no fields at their defaults, so new fields keep old models valid."""
        plain = json.loads(json.dumps(asdict(self), default=_as_python))
        return {field.name: plain[field.name] for field in fields(self) if plain[field.name] != field.default}


def _as_python(value: Any) -> Any:
    """Convert a number of NumPy for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"the backbone has the option {value!r}, which JSON cannot hold; give numbers and strings")
