"""The cache key of programs and CUDA graphs changes with everything that a loss depends on."""

import random
import sys
import time
import types
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

import numpy as np
import pytest
import torch

from tuplet import losses, mining
from tuplet.rows import key, masked_sum
from tuplet.rows.key import HiddenStateError, cache_key

CPU = torch.device("cpu")
FACTOR = 1.0
SCHEDULE = {"margins": [0.1, 0.2]}
other_module = types.ModuleType("a_module_of_the_user")
other_module.scale = 1.0


@dataclass
class Inner:
    weights: list = field(default_factory=lambda: [1.0, 2.0])


@dataclass(slots=True)
class Config:
    margin: float = 1.0
    inner: Inner = field(default_factory=Inner)


class Kind(Enum):
    ONE = 1
    TWO = 2


def helper(s):
    return s * SCHEDULE["margins"][0]


class Own(losses.RowLoss):
    factor = 1.0

    def __init__(self):
        super().__init__()
        self.config, self.array, self.kind = Config(), np.ones(3), Kind.ONE
        self.options = types.SimpleNamespace(scale=1.0)
        self.mining = mining.ValidTriplet()
        self.function = partial(torch.add, alpha=2)

    def rows(self, s, positive, negative):
        s = helper(s) * FACTOR * other_module.scale * float(self.array[0])
        return masked_sum(s, negative) * self.config.margin, positive.sum(1)


def set_item(container, place, value):
    container[place] = value


CHANGES = {
    "attribute": lambda loss, patch: setattr(loss, "margin", 2.0),
    "type of a number": lambda loss, patch: setattr(loss.config, "margin", 1),
    "nested attribute": lambda loss, patch: setattr(loss.config, "margin", 2.0),
    "list in a nested object": lambda loss, patch: set_item(loss.config.inner.weights, 1, 3.0),
    "array in place": lambda loss, patch: set_item(loss.array, 1, 3.0),
    "namespace": lambda loss, patch: setattr(loss.options, "scale", 2.0),
    "enum": lambda loss, patch: setattr(loss, "kind", Kind.TWO),
    "setting of a submodule": lambda loss, patch: setattr(loss.mining, "epsilon", 0.4),
    "hook": lambda loss, patch: loss.mining.register_forward_hook(lambda *args: None),
    "argument of a partial": lambda loss, patch: setattr(loss, "function", partial(torch.add, alpha=3)),
    "class attribute": lambda loss, patch: patch.setattr(Own, "factor", 2.0),
    "class attribute of the library": lambda loss, patch: patch.setattr(losses.RowLoss, "moves_gallery", False),
    "method": lambda loss, patch: patch.setattr(Own, "rows", lambda self, s, positive, negative: (s.sum(1), s.sum(1))),
    "global number": lambda loss, patch: patch.setitem(globals(), "FACTOR", 2.0),
    "global of a function that is called": lambda loss, patch: patch.setitem(SCHEDULE, "margins", [0.5, 0.2]),
    "function that is called": lambda loss, patch: patch.setitem(globals(), "helper", lambda s: s),
    "variable of another module": lambda loss, patch: patch.setattr(other_module, "scale", 2.0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name, monkeypatch):
    loss = Own()
    before, rows = cache_key(loss, CPU), cache_key(loss.rows, CPU)
    assert cache_key(loss, CPU) == before
    assert hash(cache_key(loss, CPU)) == hash(before)
    CHANGES[name](loss, monkeypatch)
    assert cache_key(loss, CPU) != before
    assert cache_key(loss.rows, CPU) != rows


def test_a_change_that_is_taken_back_gives_the_first_key():
    loss = Own()
    before = cache_key(loss, CPU)
    loss.array[0] = 2.0
    assert cache_key(loss, CPU) != before
    loss.array[0] = 1.0
    assert cache_key(loss, CPU) == before


def test_closures_are_seen():
    outer = [1.0]

    def rows(s, positive, negative):
        return outer[0] * s.sum(1), positive.sum(1)

    before = cache_key(rows, CPU)
    outer[0] = 2.0
    assert cache_key(rows, CPU) != before


def test_tensors_count_by_their_place_in_memory():
    """A graph reads them from there."""
    x = torch.zeros(3)
    before = cache_key([x], CPU)
    x += 1
    assert cache_key([x], CPU) == before
    assert cache_key([x.clone()], CPU) != before
    with pytest.raises(HiddenStateError, match="on cpu, and not on meta"):
        cache_key([x], torch.device("meta"))


def test_an_object_that_holds_itself_has_a_key():
    loss = losses.RAWLoss()
    loss.itself = [loss]
    assert cache_key(loss, CPU) == cache_key(loss, CPU)


def test_losses_of_equal_settings_have_one_key():
    assert cache_key(losses.RAWLoss(), CPU) == cache_key(losses.RAWLoss(), CPU)


def imports_while_it_runs(s):
    import json

    return s * len(json.dumps({}))


@pytest.mark.parametrize(
    "value",
    [
        torch.Generator(),
        iter([1, 2]),
        random.random,
        time.time,
        np.zeros(key.LARGEST_CONTENT_BYTES),
        np.array([object()]),
        imports_while_it_runs,
        lambda s: s * random.random(),
        sys.stdin,
    ],
)
def test_hidden_state_has_no_key(value):
    loss = losses.RAWLoss()
    loss.held = value
    with pytest.raises(HiddenStateError):
        cache_key(loss, CPU)
