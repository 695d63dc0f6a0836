"""Readers, splits, decoding, caches, augmentation and batches.

```py
data = tuplet.data.open("photos/")              # a Dataset: labels, classes, splits, images or features
train, test = data.split()
store = tuplet.data.load(train).to("cuda")      # decodes every image once
sampler = tuplet.sampling.ClassBalancedSampler(train.labels, classes=24, per_class=5)
augment = tuplet.data.Augment(size=224)
for step, batch in enumerate(tuplet.data.batches(store, sampler, "cuda")):
    images = augment(batch.values, batch.index, step, batch.aspects)
```
"""

from tuplet.data.augment import Augment, views
from tuplet.data.batching import Batch, batches
from tuplet.data.dataset import Dataset
from tuplet.data.readers.arrays import from_features, from_images, from_torch
from tuplet.data.readers.glyphs import glyphs
from tuplet.data.sources import open
from tuplet.data.store import Store, hold, load
from tuplet.data.transforms import OnBatch, Transform
from tuplet.images.crop import CentreCrop
from tuplet.images.decode import UnreadableImageError

__all__ = [
    "Augment",
    "Batch",
    "CentreCrop",
    "Dataset",
    "OnBatch",
    "Store",
    "Transform",
    "UnreadableImageError",
    "batches",
    "from_features",
    "from_images",
    "from_torch",
    "glyphs",
    "hold",
    "load",
    "open",
    "views",
]
