"""Running the server until it is told to stop."""

import ipaddress
import signal
import socket
import sys

from tuplet import extras
from tuplet.search.opening import Searchable
from tuplet.search.server.app import create_app
from tuplet.search.server.guard import LOOPBACK
from tuplet.search.server.limits import Limits


def serve(
    index: Searchable, host: str = "127.0.0.1", port: int = 8000, token: str | None = None, limits: Limits | None = None
) -> None:
    """Serve an index until SIGTERM or ctrl-C; requests under way are answered first.

    Only this machine can reach it unless `host` says otherwise; then a `token` should keep others out.
    Needs `pip install 'tuplet[serve]'`.
    """
    uvicorn = extras.need("uvicorn", extra="serve", purpose="serving an index")
    limits = limits or Limits()
    local = is_loopback(host)
    if not local and token is None:
        print(f"tuplet: whoever reaches {host} can search; --token keeps others out", file=sys.stderr)
    app = create_app(index, limits, token, hosts=(*LOOPBACK, host.lower()) if local else None)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=int(2 * limits.seconds) + 1,
    )
    # uvicorn stops cleanly and then raises the signal again: by then there is nothing left to end.
    signal.signal(signal.SIGTERM, lambda *_: None)
    with _listening(host, port) as listener:
        name = f"[{host}]" if ":" in host else host
        print(f"{len(index):,} vectors at http://{name}:{listener.getsockname()[1]} (stop with ctrl-C)", flush=True)
        uvicorn.Server(config).run(sockets=[listener])


def _listening(host: str, port: int) -> socket.socket:
    """A socket at the address, or one sentence that says why there cannot be one. Port 0 is any that is free."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).partition(" (")[0].rstrip(".")
        raise OSError(f"cannot listen at {host}, port {port}: {reason}; choose another --port or --host") from error


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
