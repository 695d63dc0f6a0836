"""What a function goes by besides its arguments: the key under which its program is kept.

A program is right only for the settings that it was traced with, so everything that the function can reach is looked at
anew at each call: what it closes over, the object that it is a method of, what that object holds, its classes, and the
numbers among the globals it names. Tensors count by shape and type alone, since a trace that reads one is refused.
"""

import types
from collections.abc import Hashable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device))


class HiddenStateError(Exception):
    """It holds something whose state cannot be seen."""


def settings(x: Any) -> Hashable:
    """A key that changes whenever anything changes that x, a function or whatever it holds, can see."""
    try:
        return _key(x, {})
    except RecursionError as error:
        raise HiddenStateError("it holds itself") from error


def _key(x: Any, seen: dict[int, int]) -> Hashable:
    if type(x) in _PLAIN:
        return type(x), x
    if isinstance(x, dict):
        return type(x), *((name if type(name) is str else _key(name, seen), _key(x[name], seen)) for name in x)
    if isinstance(x, Tensor):
        return Tensor, x.shape, x.dtype
    if isinstance(x, type | types.BuiltinFunctionType | types.ModuleType):
        return x
    if id(x) in seen:
        return "seen", seen[id(x)]
    seen[id(x)] = len(seen)
    if isinstance(x, types.FunctionType):
        return _function_key(x, seen)
    if isinstance(x, types.MethodType):
        return _key(x.__func__, seen), _key(x.__self__, seen)
    if isinstance(x, partial):
        return partial, _key(x.func, seen), _key(x.args, seen), _key(x.keywords, seen)
    if isinstance(x, tuple | list):
        return type(x), *(_key(value, seen) for value in x)
    if isinstance(x, set | frozenset):
        return type(x), frozenset(_key(value, seen) for value in x)
    own = _own_classes(type(x))
    # Only a class written in Python keeps all of its state where it can be seen.
    if not hasattr(x, "__dict__") or any(hasattr(c, "__slots__") for c in own) or not _is_open(type(x)):
        raise HiddenStateError(f"{type(x).__name__} keeps its state to itself")
    return _key(vars(x), seen), *(_class_key(c) for c in own)


def _function_key(x: types.FunctionType, seen: dict[int, int]) -> Hashable:
    cells = tuple(_key(cell.cell_contents, seen) for cell in x.__closure__ or ())
    named = tuple((name, _shallow(x.__globals__[name])) for name in _names(x.__code__) if name in x.__globals__)
    return x.__code__, _key(x.__defaults__, seen), _key(x.__kwdefaults__, seen), cells, named


def _names(code: types.CodeType) -> Iterator[str]:
    """The names that a function looks up, within its inner functions too."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def _class_key(c: type) -> Hashable:
    return c, *((name, _shallow(value)) for name, value in vars(c).items() if name not in ("__dict__", "__weakref__"))


def _shallow(x: Any) -> Hashable:
    """A number by its value, a function by its code, anything else by being itself."""
    return (type(x), x) if type(x) in _PLAIN else x.__code__ if isinstance(x, types.FunctionType) else id(x)


def _own_classes(c: type) -> list[type]:
    """The classes of a user's own: those before `nn.Module` and `object`."""
    return [base for base in c.__mro__ if base not in (nn.Module, object)]


def _is_open(c: type) -> bool:
    heap = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement
    return all(base.__flags__ & heap for base in c.__mro__ if base is not object)
