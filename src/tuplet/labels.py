"""Labels as users have them: a list, an array or a tensor, of integers; or of names, where those will do."""

from typing import Any

import numpy as np
from torch import Tensor


def label_array(labels: Any, name: str = "labels", names: bool = False) -> np.ndarray:
    """The labels as an array of integers of any width, or of text where `names` will do too; others are refused.

    >>> label_array([2**53, 2**53 + 1]).tolist()
    [9007199254740992, 9007199254740993]
    """
    if isinstance(labels, Tensor) and labels.is_floating_point():
        raise _no_labels(labels.dtype, name, names)  # bfloat16 among them, which numpy has not
    array = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if names and array.dtype.kind in "UO":
        array = _texts(labels, name)
    if array.dtype.kind not in ("iuU" if names else "iu"):
        raise _no_labels(array.dtype, name, names)
    return array


def _texts(labels: Any, name: str) -> np.ndarray:
    each = np.asarray(labels, dtype=object)  # numpy would write what else stands among names as text
    others = [label for label in each.flat if not isinstance(label, str)]
    if 0 < len(others) < each.size:
        raise TypeError(f"{name} must be integers or names, got {others[0]!r} among names; name every class")
    return each if others else each.astype(str)


def _no_labels(kind: Any, name: str, names: bool) -> TypeError:
    wanted, got = "integers or names" if names else "integers", str(kind).removeprefix("torch.")
    return TypeError(f"{name} must be {wanted}, got {got}; number the classes with np.unique(…, return_inverse=True)")
