"""Cache key of a loss or of a row function: everything that its result depends on besides its arguments.

Programs (`tuplet.rows.fused`) and CUDA graphs (`tuplet.rows.cuda_graphs`) repeat what ran when they were made, so both
are looked up by this key. It is computed at each call and covers what Python code can reach: attributes, nested
objects, closures, default arguments, class attributes and the global names that a function reads. Libraries, this one
included, are taken as constant. State that cannot be seen raises `HiddenStateError`, and nothing is cached.
"""

import dis
import functools
import types
from collections.abc import Callable, Container, Hashable, Iterable
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

# Larger arrays would take longer to compare than a graph saves.
LARGEST_CONTENT_BYTES = 1 << 14
# Packages whose functions and module variables do not change between calls.
_CONSTANT = {"torch", "tuplet", "triton", "builtins", "math", "cmath", "operator", "functools", "itertools"}
_CONSTANT |= {"collections", "dataclasses", "typing", "types", "abc", "enum", "numbers"}
_PLAIN = {bool, int, float, complex, str, bytes, type(None), type(...), range, slice}
_PLAIN |= {torch.dtype, torch.device, torch.Size, torch.layout}
# Attributes of a class that no result depends on.
_NOT_STATE = {"__dict__", "__weakref__", "__doc__", "__annotations__", "__slots__", "__abstractmethods__", "_abc_impl"}
_NOT_STATE |= {"__repr__", "__str__"}
_MAKERS = {"__init__", "__new__", "__post_init__"}
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: set for classes that a class statement made
_MODULE_DEFAULTS = vars(nn.Module())


#: Objects that have been met, by their id: in which order, and the object itself, so that its id is not used again.
_Seen: TypeAlias = dict[int, tuple[int, Any]]


class HiddenStateError(Exception):
    """A value keeps state where it cannot be seen."""


def cache_key(x: Any, device: torch.device) -> Hashable:
    """Return a key that changes whenever anything changes that `x` depends on.

    Tensors count by their place in memory, since a captured graph reads them from there; arrays by their content.

    Args:
        x: a loss, a row function, or any object that they hold.
        device: the device that the program or graph runs on.

    Raises:
        HiddenStateError: `x` reaches a state that cannot be seen, such as that of a generator, of a C extension or of
            a tensor on another device.

    >>> scales, cpu = {"margin": [1.0, 2.0]}, torch.device("cpu")
    >>> before = cache_key(scales, cpu)
    >>> scales["margin"][0] = 3.0
    >>> cache_key(scales, cpu) == before
    False
    """
    try:
        return _key(x, device, {})
    except RecursionError as error:
        raise HiddenStateError("it is nested too deeply") from error


def _key(x: Any, device: torch.device, seen: _Seen) -> Hashable:
    if type(x) in _PLAIN:
        return type(x), x
    if isinstance(x, Tensor):
        return _tensor_key(x, device)
    if isinstance(x, type):
        return _class_key(x, device, seen, {})
    if isinstance(x, types.BuiltinFunctionType):
        return _builtin_key(x)
    if id(x) in seen:
        return "seen", seen[id(x)][0]
    seen[id(x)] = len(seen), x
    if isinstance(x, nn.Module):
        return _module_key(x, device, seen)
    if isinstance(x, dict | types.MappingProxyType):
        return type(x), *[(_key(name, device, seen), _key(value, device, seen)) for name, value in x.items()]
    if isinstance(x, set | frozenset):
        return type(x), frozenset(_key(value, device, seen) for value in x)
    if isinstance(x, types.FunctionType):
        return _function_key(x, device, seen)
    if isinstance(x, np.ndarray | np.generic):
        return _array_key(x)
    if isinstance(x, types.ModuleType | np.ufunc):
        return x
    for kinds, parts in _PARTS.items():
        if isinstance(x, kinds):
            return type(x), *[_key(part, device, seen) for part in parts(x)]
    return _object_key(x, device, seen)


# Objects that are made of other objects: their types, and their parts.
_PARTS: dict[Any, Callable[[Any], Iterable[Any]]] = {
    (tuple, list): lambda x: x,
    types.MethodType: lambda x: (x.__func__, x.__self__),
    types.SimpleNamespace: lambda x: (vars(x),),
    functools.partial: lambda x: (x.func, x.args, x.keywords),
    property: lambda x: (x.fget, x.fset),
    (staticmethod, classmethod): lambda x: (x.__func__,),
}


def _builtin_key(x: types.BuiltinFunctionType) -> Hashable:
    """Key a function of C by itself, unless it belongs to an object, as `random.random` does."""
    owner = x.__self__
    home = owner.__name__ if isinstance(owner, types.ModuleType) else getattr(owner, "__module__", None)
    if owner is not None and not (isinstance(owner, type | types.ModuleType) and _is_constant(home)):
        raise HiddenStateError(f"{x.__qualname__} keeps its state to itself")
    return x


def _tensor_key(x: Tensor, device: torch.device) -> Hashable:
    """Key a tensor by its place in memory: a graph reads it from there, but takes one elsewhere as constant."""
    if x.device != device:
        raise HiddenStateError(f"a tensor is on {x.device}, and not on {device}")
    return Tensor, x.data_ptr(), x.shape, x.stride(), x.dtype, x.requires_grad


def _array_key(x: Any) -> Hashable:
    if x.dtype.hasobject or x.nbytes > LARGEST_CONTENT_BYTES:
        raise HiddenStateError(f"an array of {x.nbytes} bytes of {x.dtype} cannot be compared at each call")
    return type(x), x.shape, x.dtype, x.tobytes()


def _module_key(x: nn.Module, device: torch.device, seen: _Seen) -> Hashable:
    """Key a module by its attributes, but for those that every module has, such as empty tables of hooks."""
    held: list[Any] = []
    for name, value in vars(x).items():
        if type(value) in _PLAIN:
            held.append((name, value, type(value)))
        elif type(value) is not type(_MODULE_DEFAULTS.get(name)) or value:
            held.append((name, _key(value, device, seen)))
    return tuple(held), *[_class_key(c, device, seen) for c in type(x).__mro__ if c not in (nn.Module, object)]


def _object_key(x: Any, device: torch.device, seen: _Seen) -> Hashable:
    """Key an object by its attributes; only a class written in Python keeps all of its state in them."""
    classes = [c for c in type(x).__mro__ if c is not object]
    if not all(c.__flags__ & _HEAP_TYPE for c in classes):
        raise HiddenStateError(f"{type(x).__name__} keeps its state to itself")
    slots = [name for c in classes for name in _slots(c) if hasattr(x, name)]
    held = {**getattr(x, "__dict__", {}), **{name: getattr(x, name) for name in slots}}
    return _key(held, device, seen), *[_class_key(c, device, seen) for c in classes]


def _slots(c: type) -> Iterable[str]:
    slots = vars(c).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else slots


def _function_key(x: types.FunctionType, device: torch.device, seen: _Seen) -> Hashable:
    parts: list[Any] = [x.__code__]
    if x.__defaults__ or x.__kwdefaults__:
        parts.append(_key((x.__defaults__, x.__kwdefaults__), device, seen))
    for cell in x.__closure__ or ():
        try:
            parts.append(_key(cell.cell_contents, device, seen))
        except ValueError:  # a name that its outer function has not set yet
            parts.append(None)
    if not _is_constant(x.__globals__.get("__name__")):
        parts.append(_globals_key(x.__globals__, _names(x.__code__), device, seen))
    return tuple(parts)


def _globals_key(space: dict[str, Any], names: Iterable[str], device: torch.device, seen: _Seen) -> Hashable:
    """Key the values of `names` in a module; of another module that is among them, those of its own variables."""
    found = []
    for name in names:
        if name in space:
            value = space[name]
            if isinstance(value, types.ModuleType) and not _is_constant(value.__name__):
                if id(value) not in seen:
                    seen[id(value)] = len(seen), value
                    found.append((name, _globals_key(vars(value), names, device, seen)))
            else:
                found.append((name, _key(value, device, seen)))
    return tuple(found)


@functools.cache
def _names(code: types.CodeType) -> tuple[str, ...]:
    """Return the names that a function and its inner functions look up, as variables or as attributes."""
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME" and not _is_constant(step.argval):
            raise HiddenStateError(f"{code.co_name} imports {step.argval} while it runs")
    inner = [name for part in code.co_consts if isinstance(part, types.CodeType) for name in _names(part)]
    return tuple(dict.fromkeys([*code.co_names, *inner]))


def _class_key(c: type, device: torch.device, seen: _Seen, skipped: Container[str] = _MAKERS) -> Hashable:
    """Key a class by its attributes; for an object that exists, without the methods that make one."""
    if id(c) in seen or not c.__flags__ & _HEAP_TYPE:
        return c
    seen[id(c)] = len(seen), c
    if _is_constant(c.__module__):
        return c, _revision(c)
    held = [(name, value) for name, value in vars(c).items() if not _is_slot(value)]
    held = [(name, value) for name, value in held if name not in _NOT_STATE and name not in skipped]
    return c, *[(name, _key(value, device, seen)) for name, value in held]


def _is_slot(x: Any) -> bool:
    return isinstance(x, types.MemberDescriptorType | types.GetSetDescriptorType)


_revisions: dict[type, tuple[int, dict[str, Any]]] = {}


def _revision(c: type) -> int:
    """Return how often the attributes of a library's class have been replaced: cheaper than a look at all of them."""
    revision, before = _revisions.get(c, (0, None))
    if before is None or not _is_same(vars(c), before):
        revision += 1
        _revisions[c] = revision, dict(vars(c))
    return revision


def _is_same(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except Exception:  # arrays among the values, that were replaced
        return False


@functools.cache
def _is_constant(module: str | None) -> bool:
    """Return whether the functions and variables of a module are taken as constant."""
    return module is not None and module.partition(".")[0] in _CONSTANT
