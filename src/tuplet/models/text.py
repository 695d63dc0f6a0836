"""Embed text with the text tower of CLIP, for images that its image tower embedded."""

import os
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from tuplet.errors import first_line, warn
from tuplet.extras import need
from tuplet.models.backbone import State
from tuplet.models.embedder import Embedder

#: The models on the Hugging Face hub whose image towers are the built-in networks.
SOURCES = {
    "vit_base_patch16_clip_quickgelu_224": "openai/clip-vit-base-patch16",
    "vit_base_patch32_clip_quickgelu_224": "openai/clip-vit-base-patch32",
    "vit_large_patch14_clip_quickgelu_224": "openai/clip-vit-large-patch14",
}


class TextEncoder:
    """Embed text with the text tower that belongs to an embedder of CLIP. Needs `pip install 'tuplet[text]'`.

    Compare its vectors with those of the embedder's images by the cosine:
    `index.search(TextEncoder(index.embedder).embed("a red bird on snow"))`.

    Args:
        embedder: a CLIP image tower with its published weights, such as `models.pretrained("clip_base_patch32")`.
        source: the folder or the name on the Hugging Face hub of a CLIP model, as the package transformers saves it.
            None is the model that OpenAI published for the network.

    Raises:
        ValueError: the embedder is not an image tower as published, or the model has another image tower.
        FileNotFoundError: the model is not here and cannot be fetched.
    """

    def __init__(self, embedder: Embedder, source: str | os.PathLike[str] | None = None) -> None:
        projection, name = _projection(embedder), embedder.config.architecture
        if source is None and name not in SOURCES:
            raise ValueError(f"the text tower of {name} is not known; give the folder or the name of its CLIP model")
        source = str(source or SOURCES[name])
        transformers = need("transformers", extra="text", purpose="searching by text")
        try:
            model = transformers.CLIPModel.from_pretrained(source)
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        except (OSError, ValueError) as error:
            raise FileNotFoundError(
                f"the CLIP model {source} is neither a folder here nor on the hub ({first_line(error)}); "
                "give the folder of one that transformers saved"
            ) from error
        published = model.visual_projection.weight
        # Files in half precision are rounded.
        if published.shape != projection.shape or not torch.allclose(published, projection, rtol=0, atol=1e-3):
            raise ValueError(
                f"the image tower of {source} is not the one that made the vectors, so its text does not fit them; "
                "give the CLIP model that the weights come from"
            )
        if _was_trained(embedder, model.state_dict()):
            warn(f"the image tower was trained further than that of {source}, so text fits its vectors less well")
        self.tower: nn.Module = model.text_model.eval()
        self.projection: nn.Linear = model.text_projection

    @torch.inference_mode()
    def embed(self, texts: str | Sequence[str]) -> Tensor:
        """Return vectors (n, width) of unit length; text beyond the 77 tokens that CLIP reads is cut off."""
        texts = [texts] if isinstance(texts, str) else list(texts)
        tokens = self.tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        pooled = self.tower(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]).pooler_output
        return normalize(self.projection(pooled).float(), dim=1)


def _projection(embedder: Embedder) -> Tensor:
    """Return the last layer of a CLIP image tower; ValueError if the embedder has another one or a layer on top."""
    layer, config = getattr(embedder.backbone, "projection", None), embedder.config
    is_published = (config.dim, config.levels, config.pooling, config.layer_norm) == (None, "H", "class", False)
    if not isinstance(layer, nn.Linear) or not is_published:
        raise ValueError(
            f"the vectors are those of {config.architecture}, which was not trained with text; for text queries make "
            "the index with CLIP: tuplet index clip_base_patch32 photos/ -o photos.index"
        )
    return layer.weight.detach().float().cpu()


def _was_trained(embedder: Embedder, published: State) -> bool:
    """Return whether the blocks of an image tower differ from the published ones by more than half precision does."""
    own = embedder.weights()
    return not all(
        torch.allclose(own[f"backbone.{name}"].float().cpu(), value.float(), rtol=1e-3, atol=1e-5)
        for name, value in embedder.backbone.translate(published).items()
        if name.startswith("blocks.")
    )
