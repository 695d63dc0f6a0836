"""From a trained model to answers: an index of vectors, searched in Python, in the terminal and in a page.

```py
index = tuplet.search.create("things.index", embedder=embedder)   # or "things.db", or "http://milvus:19530#things"
index.add(["a.jpg", "b.jpg"], metadata=[{"label": "ant"}, {"label": "bee"}])
index.search("photo.jpg", k=10, where={"label": "bee"})[0]        # hits: id, score, metadata
```
"""

from tuplet.search.approximate import Approximate
from tuplet.search.copying import copy
from tuplet.search.index import Index
from tuplet.search.milvus import MilvusIndex
from tuplet.search.opening import Searchable, create, open
from tuplet.search.results import Found, Hit

__all__ = ["Approximate", "Found", "Hit", "Index", "MilvusIndex", "Searchable", "copy", "create", "open"]
