"""`tuplet losses`."""

import inspect
import re
from typing import TYPE_CHECKING, Annotated

import typer

from tuplet.cli.catalog import complete
from tuplet.cli.tables import print_table
from tuplet.errors import did_you_mean

if TYPE_CHECKING:
    from tuplet.losses import RowLoss

#: Losses to begin with, and what for: the answers of docs/losses.md.
START = {
    "proxy_anchor": "start here: one vector per class fits into memory",
    "multi_similarity": "too many classes for that, or new ones all the time",
    "arcface": "faces, or thousands of classes to tell apart",
    "soft_triple": "classes of several kinds of examples",
    "smooth_ap": "lists that must be right from the top",
    "ranked_list": "classes that should keep their inner variety",
}
_BATCHES = {
    "classes": "several of each class",
    "pairs": "two of each class",
    "triplets": "triplets",
    "groups": "equal groups of classes",
    "neighbors": "classes near each other",
    "one_class": "one class, then negatives",
}


def losses(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Explain this loss.", autocompletion=complete("losses"))
    ] = None,
) -> None:
    """List every loss and say which to try first; or explain one: equation, inputs, related losses, paper.

    Examples:
      tuplet losses
      tuplet losses ranked_list
      tuplet train photos/ --loss ranked_list --loss-options temperature=20
    """
    from tuplet.losses import LOSSES

    if name is not None:
        if name not in LOSSES:
            raise ValueError(f"there is no loss {name!r}; {did_you_mean(name, LOSSES)}")
        print(f"{name}: {LOSSES[name].__name__}{_signature(LOSSES[name])}\n\n{inspect.getdoc(LOSSES[name])}")
        return
    print_table(["start with", "for"], START.items())
    print()
    print_table(["loss", "name", "needs", "paper"], [[each, *_row(loss)] for each, loss in LOSSES.items()])
    print("\ntuplet losses NAME explains one; tuplet compare DATA NAME NAME … tries several on your data.")


def _row(loss: "type[RowLoss]") -> tuple[str, str, str]:
    """Return what the table shows of a loss: its name, what it needs, first author and year."""
    equation, _, paper = summarize(loss)
    batch = loss.batch if isinstance(loss.batch, str) else "classes"  # a property where options change it
    needs = "a vector per class" if "num_classes" in inspect.signature(loss).parameters else _BATCHES[batch]
    # The one paper without authors, a submission, is known by its title.
    author = "Unified view" if paper.startswith("A Unified View") else re.split("[,:]", paper)[0]
    year = re.findall(r"\b(?:19|20)\d\d\b", paper)[0]
    return equation.partition(":")[0], needs, f"{author} {year}"


def summarize(loss: "type[RowLoss]") -> tuple[str, str, str]:
    """Read equation, inputs and paper of a loss from its docstring; missing parts come from its base class.

    >>> from tuplet.losses import NCALoss
    >>> summarize(NCALoss)[2]
    'Goldberger, Roweis, Hinton, Salakhutdinov: Neighbourhood Components Analysis. NIPS 2004.'
    """
    from tuplet.losses import RowLoss

    paragraphs = [" ".join(part.split()) for part in (inspect.getdoc(loss) or "").split("\n\n")]
    inputs = next((part.removeprefix("Inputs: ") for part in paragraphs if part.startswith("Inputs: ")), "")
    after_example = next((i for i, part in enumerate(paragraphs) if part.startswith(">>>")), 0) + 1
    paper = " ".join(paragraphs[after_example:]) if after_example > 1 else ""
    if loss.__base__ not in (RowLoss, None):
        _, base_inputs, base_paper = summarize(loss.__base__)
        inputs, paper = inputs or base_inputs, paper or base_paper
    return paragraphs[0], inputs, paper


def _signature(loss: "type[RowLoss]") -> str:
    own = [p for p in inspect.signature(loss).parameters.values() if p.name not in ("num_classes", "dim")]
    return f"({', '.join(str(p.replace(annotation=p.empty)) for p in own)})"
