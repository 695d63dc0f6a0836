"""From files to batches on the device: readers, splits, decoding, caches and augmentation.

```py
data = tuplet.data.open("photos/")              # a Dataset: labels, classes, splits, pictures or features
train, test = data.split()
store = tuplet.data.load(train).to("cuda")      # decoded once
sampler = tuplet.sampling.ClassBalancedSampler(train.labels, classes=24, per_class=5)
augment = tuplet.data.Augment(size=224)
for step, batch in enumerate(tuplet.data.batches(store, sampler, "cuda")):
    images = augment(batch.values, batch.index, step, batch.aspects)
```
"""

from tuplet.data.arrays import from_features, from_images
from tuplet.data.augment import Augment
from tuplet.data.batches import Batch, batches
from tuplet.data.crops import views
from tuplet.data.dataset import Dataset
from tuplet.data.glyphs import glyphs
from tuplet.data.opening import open
from tuplet.data.store import Store, hold, load

__all__ = [
    "Augment",
    "Batch",
    "Dataset",
    "Store",
    "batches",
    "from_features",
    "from_images",
    "glyphs",
    "hold",
    "load",
    "open",
    "views",
]
