"""Connections with deadlines and limits, so that slow or numerous clients cannot stop the server.

uvicorn waits without end for headers, for the rest of a body that was answered early, and for clients that do not read
their answer. It also accepts connections until the process cannot open any more files.
"""

import asyncio
import errno
import os
import socket
import sys
import threading
import time
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tuplet.search.server.limits import Limits

#: Connections to accept at a time, each of which opens a file before it can be refused.
ACCEPTED = 64
#: Bytes to read from a connection at a time; others have their turn in between.
READ_BYTES = 2**14
#: The most bytes of a request before its body: a filter of 256 long labels is in its address.
HEADER_BYTES = 2**16
#: Seconds of this thread that reading a request may take, and for each of its bytes: a body in chunks of one byte takes
#: a thousand times as long as others.
PARSE_SECONDS, BYTE_SECONDS = 0.05, 1e-7
#: Connections that the system keeps until they are accepted.
BACKLOG = 1024
#: Seconds in which a client may send the rest of a body after its answer.
REST_SECONDS = 2.0
#: Seconds for running requests after the signal to stop, and after which the process ends whatever is still running.
STOP_SECONDS, KILL_SECONDS = 5, 8.0
FULL = b'{"detail":"the server has too many connections; try again in a second"}'
FULL_ANSWER = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(FULL), FULL)
)


class Connections:
    """The open connections of each client.

    A new one takes the place of the oldest that waits for its client, counted from its last answer. It is refused only
    if the server is working for all others.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._most = min(limits.connections, _max_open_files() // 2)
        self._by_client: dict[str, dict[Connection, None]] = {}  # of each client, the oldest first

    def admit(self, connection: "Connection") -> bool:
        """Count a new connection; return False if there is no place for it."""
        own = self._by_client.get(connection.address, {})
        crowd = None
        if len(own) >= self.limits.client_connections:
            crowd = own
        elif sum(map(len, self._by_client.values())) >= self._most:
            crowd = max(self._by_client.values(), key=len)
        if crowd is not None:
            oldest = next((each for each in crowd if each.is_waiting), None)
            if oldest is None:
                return False
            oldest.abort()
        self._by_client.setdefault(connection.address, {})[connection] = None
        return True

    def renew(self, connection: "Connection") -> None:
        """Count a connection that was answered as the newest of its client."""
        own = self._by_client.get(connection.address, {})
        if connection in own:
            own[connection] = own.pop(connection)

    def remove(self, connection: "Connection") -> None:
        """Forget a connection."""
        own = self._by_client.get(connection.address, {})
        own.pop(connection, None)
        if not own:
            self._by_client.pop(connection.address, None)


class Connection(H11Protocol):
    """One connection, which is closed if its client is too slow."""

    everyone: Connections  # set in the subclass of each server
    address = ""
    _deadline: asyncio.TimerHandle | None = None
    _write_deadline: asyncio.TimerHandle | None = None
    _parsing = 0.0

    @property
    def has_request(self) -> bool:
        """True from a request's last header to the last byte of its answer."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def is_waiting(self) -> bool:
        """True if the client has not sent all of a request."""
        return not self.has_request or self.cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection or refuse it; the headers must then arrive in time."""
        super().connection_made(transport)
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]
        self.address = str(self.client[0]) if self.client else ""
        if self.everyone.admit(self):
            self._wait(self.everyone.limits.seconds)
        else:
            transport.write(FULL_ANSWER)
            transport.close()
            self._wait(REST_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        for deadline in (self._deadline, self._write_deadline):
            if deadline is not None:
                deadline.cancel()
        self.everyone.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, unless the connection was refused or takes too much time."""
        if self.transport.is_closing():
            return
        begun = time.thread_time()
        super().data_received(data)
        spent = time.thread_time() - begun - BYTE_SECONDS * len(data)
        self._parsing += min(spent, PARSE_SECONDS / 2)  # a garbage collection may fall into one reading
        if self._parsing > PARSE_SECONDS:
            self.abort()

    def on_response_complete(self) -> None:
        """Expect the next request, or the rest of this one's body, in time."""
        self._parsing = 0.0
        is_complete = self.conn.their_state is not h11.SEND_BODY
        self._wait(self.everyone.limits.seconds if is_complete else REST_SECONDS)
        self.everyone.renew(self)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Expect the client to read its answer in time."""
        super().pause_writing()
        self._write_deadline = self.loop.call_later(self.everyone.limits.seconds, self.abort)

    def resume_writing(self) -> None:
        """Forget the deadline: the client has read."""
        super().resume_writing()
        if self._write_deadline is not None:
            self._write_deadline.cancel()

    def abort(self) -> None:
        """Close the connection at once."""
        self.everyone.remove(self)
        self.transport.abort()

    def _wait(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self._end_waiting)

    def _end_waiting(self) -> None:
        if not self.has_request:  # the service limits the time of a request
            self.abort()


class Server(uvicorn.Server):
    """A server that survives many connections and always ends."""

    _killer: threading.Timer | None = None

    def __init__(self, app: Any, limits: Limits) -> None:
        protocol = type("LimitedConnection", (Connection,), {"everyone": Connections(limits)})
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http=protocol,
            ws="none",
            log_level="error",  # every stranger can cause warnings
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=HEADER_BYTES,
            backlog=ACCEPTED,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening."""
        asyncio.get_running_loop().set_exception_handler(_QuietHandler())
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)  # asyncio also accepts as many at a time as it was told to keep

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; end the process if that takes too long."""
        if self._killer is None:
            self._killer = threading.Timer(KILL_SECONDS, _kill)
            self._killer.daemon = True
            self._killer.start()
        super().handle_exit(sig, frame)

    def stopped(self) -> None:
        """Cancel the timer that would end the process: all work is done."""
        if self._killer is not None:
            self._killer.cancel()


def _max_open_files() -> int:
    """Return how many files this process may open; Windows has no limit that matters here."""
    try:
        import resource
    except ImportError:
        return sys.maxsize
    return int(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _kill() -> None:
    print("tuplet: the server ended although some of its work was not done", file=sys.stderr, flush=True)
    os._exit(1)


class _QuietHandler:
    """Report errors of the event loop; that too many files are open, at most once a minute."""

    def __init__(self) -> None:
        self._reported = -60.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if getattr(context.get("exception"), "errno", None) not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif time.monotonic() - self._reported >= 60:
            self._reported = time.monotonic()
            print("tuplet: too many open files; new connections must wait (see ulimit -n)", file=sys.stderr)
