"""Every loss describes itself in the same order: equation, arguments, inputs, relatives, an example, a citation."""

import inspect
import re

import pytest

from tuplet.losses import LOSSES

SIGNS = {"Args:": "arguments", "Inputs:": "inputs", "Related:": "related", ">>>": "example"}


def kinds(paragraphs):
    """Return the kind of each paragraph; one without a sign is text."""
    for paragraph in paragraphs:
        yield next((kind for sign, kind in SIGNS.items() if paragraph.startswith(sign)), "text")


@pytest.mark.parametrize("loss", LOSSES.values())
def test_a_loss_describes_itself_in_the_order_of_all(loss):
    *paragraphs, citation = inspect.getdoc(loss).split("\n\n")
    order = [kind for kind in kinds(paragraphs) if kind != "text"]
    arguments = ["arguments"] if inspect.signature(loss).parameters else []
    assert order == [*arguments, "inputs", "related", "example"]
    assert re.search(r"\b(19|20)\d\d\b", citation)


@pytest.mark.parametrize("loss", LOSSES.values())
def test_a_loss_names_the_vectors_and_the_batches_that_it_needs(loss):
    (inputs,) = re.findall(r"Inputs: (.*?)\.(?: |$)", " ".join(inspect.getdoc(loss).split()))
    assert re.match(r"unit vectors|vectors of (any|free) length|what its parts need", inputs)
    assert re.search(r"batches|two examples of each class|what its parts need", inputs)
    assert inputs.startswith("unit vectors") == (loss.normalize is True)
