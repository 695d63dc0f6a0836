"""Embed many images: decoding in threads, batches, progress, and vectors on disk."""

from tuplet.embedding.pipeline import Embedded, embed_files, embed_pixels, embed_store, image_pixels
from tuplet.embedding.shards import embed_in_shards

__all__ = ["Embedded", "embed_files", "embed_in_shards", "embed_pixels", "embed_store", "image_pixels"]
