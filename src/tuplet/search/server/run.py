"""Run the server until it is told to stop."""

import ipaddress
import signal
import socket
import sys

from tuplet import extras
from tuplet.search.base import Searchable
from tuplet.search.server.app import app_of
from tuplet.search.server.limits import Limits
from tuplet.search.server.service import Service

#: The names of this machine.
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def serve(
    index: Searchable,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    limits: Limits | None = None,
    originals: bool | None = None,
) -> None:
    """Serve an index until SIGTERM or ctrl-C; running requests are answered first, if they end within 5 seconds.

    Work that is still running after 8 seconds is abandoned: the process ends with status 1.

    Needs `pip install 'tuplet[serve]'`.

    Args:
        index: the index.
        host: the address to listen at. The default can be reached from this machine only.
        port: the port to listen at; 0 is any free one.
        token: a secret that every request must bring; use one if other machines can reach the server.
        limits: the limits of requests.
        originals: show the images of the files that were indexed and name their paths; by default only to this machine.
    """
    extras.need("uvicorn", extra="serve", purpose="serving an index")
    from tuplet.search.server.connections import Server

    limits = limits or Limits()
    is_local = is_loopback(host)
    if not is_local and token is None:
        print(f"tuplet: everyone who can reach {host} can search; --token keeps others out", file=sys.stderr)
    with _listen(host, port) as listener:
        service = Service(index, limits, is_local if originals is None else originals)
        service.start()
        server = Server(app_of(service, token, hosts=(*LOOPBACK, host.lower()) if is_local else None), limits)
        # For signals before uvicorn handles them, and for the one that it raises again after it has stopped.
        before = signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))
        name = f"[{host}]" if ":" in host else host
        print(f"{len(index):,} vectors at http://{name}:{listener.getsockname()[1]} (stop with ctrl-C)", flush=True)
        server.run(sockets=[listener])
    signal.signal(signal.SIGTERM, before)
    service.close()
    server.stopped()


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; OSError with the reason if there cannot be one."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).partition(" (")[0].rstrip(".")
        raise OSError(f"cannot listen at {host}, port {port}: {reason}; choose another --port or --host") from error


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach the address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
