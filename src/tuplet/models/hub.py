"""Models on the Hugging Face hub: send one there, and fetch one by its name."""

import os
import re
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from tuplet.errors import first_line
from tuplet.extras import need
from tuplet.models.card import CARD, write_card
from tuplet.models.embedder import Embedder
from tuplet.models.storage import CONFIG, WEIGHTS


def push_to_hub(
    embedder: Embedder, name: str, *, private: bool = False, card: str | os.PathLike[str] | None = None
) -> str:
    """Send an embedder to the hub, as `Embedder.push_to_hub` describes, and return the address of the commit."""
    hub = need("huggingface_hub", extra="hub", purpose="sending a model to the hub")
    with TemporaryDirectory() as folder:
        embedder.save(folder)
        if card is None:
            write_card(folder, embedder)
        else:
            Path(folder, CARD).write_text(Path(card).read_text(encoding="utf-8"), encoding="utf-8")
        api = hub.HfApi(library_name="tuplet")
        api.create_repo(name, private=private, exist_ok=True)
        return str(api.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload an embedder of Tuplet"))


def find_model(name: str | os.PathLike[str]) -> Path:
    """Return the folder of a model: the path itself, or a copy of the hub's model "user/model".

    >>> find_model("runs/birds/best").parts
    ('runs', 'birds', 'best')
    """
    path = Path(name)
    is_name = re.fullmatch(r"[\w.-]+/[\w.-]+", str(name)) and not path.exists() and not path.parent.exists()
    if not is_name or find_spec("huggingface_hub") is None:
        return path
    import huggingface_hub as hub

    try:
        return Path(hub.snapshot_download(str(name), allow_patterns=[CONFIG, WEIGHTS], library_name="tuplet"))
    except OSError as error:  # of the disk, the network or the hub
        raise FileNotFoundError(
            f"{name} is neither a folder here nor a model of the hub that can be fetched ({first_line(error)}); "
            "check the name, or log in with `hf auth login`"
        ) from error
