"""Search for similar images: an index of embeddings, used from Python, the terminal or a web page.

```py
index = tuplet.search.create("things.index", embedder=embedder)   # or "things.db", or "http://milvus:19530#things"
index.add(["a.jpg", "b.jpg"], metadata=[{"label": "ant"}, {"label": "bee"}])
index.search("photo.jpg", k=10, where={"label": "bee"})[0]        # hits: id, score, metadata
```
"""

from tuplet.search.backends import copy, create, open
from tuplet.search.base import Searchable
from tuplet.search.files import Approximate
from tuplet.search.index import Index
from tuplet.search.milvus import MilvusIndex
from tuplet.search.results import Hit, SearchResults

__all__ = ["Approximate", "Hit", "Index", "MilvusIndex", "SearchResults", "Searchable", "copy", "create", "open"]
