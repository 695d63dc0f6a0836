"""Optional packages, imported only when something needs them."""

from importlib import import_module
from types import ModuleType


def need(module: str, extra: str, purpose: str) -> ModuleType:
    """Import `module`, or say in one sentence which extra brings it.

    Some packages that do not fit the installed torch raise RuntimeError or OSError on import rather than
    ImportError; all three mean the same to a user.

    >>> need("json", extra="none", purpose="reading JSON").__name__
    'json'
    """
    try:
        return import_module(module)
    except (ImportError, RuntimeError, OSError) as error:
        raise ImportError(
            f"{purpose} needs the package {module!r}, which cannot be imported here ({error}); "
            f"install it with: pip install 'tuplet[{extra}]'"
        ) from error
