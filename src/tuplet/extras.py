"""Optional packages, imported only when something needs them."""

from importlib import import_module
from types import ModuleType


def need(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional package.

    Args:
        module: its import name.
        extra: the extra of this package that installs it.
        purpose: the subject of the error message, e.g. "reading JSON".

    Raises:
        ImportError: if the package cannot be imported. Some packages that do not fit the installed torch raise
            RuntimeError or OSError instead; these become ImportError too.

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
