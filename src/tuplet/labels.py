"""Labels as users give them: a list, an array or a tensor of integers, or of class names where these are allowed."""

from typing import Any

import numpy as np
from torch import Tensor


def label_array(labels: Any, name: str = "labels", names: bool = False) -> np.ndarray:
    """Return labels as an array of integers of any width, or of text.

    Integers that no type of numpy holds together stay Python's own, in an array of objects.

    Args:
        labels: a list, an array or a tensor.
        name: how error messages call them.
        names: allow text.

    Raises:
        TypeError: if the labels are of another type, booleans among them, or mix text with something else.

    >>> label_array([2**53, 2**53 + 1]).tolist()
    [9007199254740992, 9007199254740993]
    """
    if isinstance(labels, Tensor) and labels.is_floating_point():
        raise _type_error(labels.dtype, name, names)  # numpy could not convert bfloat16
    array = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.dtype.kind in "fO":
        each = np.asarray(labels, dtype=object)  # np.asarray has made floats of 3 and 2⁶³
        if each.size and all(type(label) is int for label in each.flat):
            return each
    if names and array.dtype.kind in "UO":
        array = _text_array(labels, name)
    if array.dtype.kind not in ("iuU" if names else "iu"):
        raise _type_error(array.dtype, name, names)
    return array


def _text_array(labels: Any, name: str) -> np.ndarray:
    each = np.asarray(labels, dtype=object)  # otherwise numpy would convert numbers among the names to text
    others = [label for label in each.flat if not isinstance(label, str)]
    if 0 < len(others) < each.size:
        raise TypeError(f"{name} must be integers or names, got {others[0]!r} among names; name every class")
    return each if others else each.astype(str)


def _type_error(dtype: Any, name: str, names: bool) -> TypeError:
    expected = "integers or names" if names else "integers"
    got = "text" if getattr(dtype, "kind", "") == "U" else str(dtype).removeprefix("torch.")
    return TypeError(f"{name} must be {expected}, got {got}; number the classes with np.unique(…, return_inverse=True)")
