"""What a module shows of itself when it is printed."""

from torch import nn


class Shown(nn.Module):
    """A module whose settings stand in its name.

    >>> class Scaled(Shown):
    ...     def __init__(self, scale=2.0):
    ...         super().__init__()
    ...         self.scale = scale
    >>> Scaled()
    Scaled(scale=2.0)
    """

    def extra_repr(self) -> str:
        """Every setting that is a number, a truth value or a word."""
        settings = {name: value for name, value in vars(self).items() if name[0] != "_" and name != "training"}
        plain = {name: value for name, value in settings.items() if isinstance(value, bool | int | float | str)}
        return ", ".join(f"{name}={value!r}" for name, value in plain.items())
