"""Copies in flight: a few threads that carry out what admitted requests ask for, outside the cache's lock.

    open_batch ──▶ request.copies ──▶ submit ──▶ a worker copies ──▶ copied()     the source is let go of
                   (source pinned)                      │
                                        fails, or is cancelled ──▶ abort()        source and target are let go of

Either way what the copy held is released once, and the outcome is in the `Transfer`. Until that is done the blocks of
the request are being read and written: whoever gives the request up before, does it with `in_flight=True`, and says
`settled()` when the transfer is done.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar

from prefixcache.blocks.kv_store import BlockCopy, BlockMemory
from prefixcache.errors import OptionError, RequestError, whole_number


class Copying(Protocol):
    """What is needed of a request."""

    @property
    def copies(self) -> Sequence[BlockCopy]: ...
    def copied(self) -> None: ...
    def abort(self) -> None: ...


Copier = TypeVar("Copier", bound=Copying)


def carry_out(memory: BlockMemory, request: Copying, cancelled: Callable[[], bool] = lambda: False) -> None:
    """Do the copies of a request and say so. O(bytes copied); only `copied` and `abort` take the cache's lock.

    `cancelled` is asked before each copy, and once more behind the last. When it says yes, or a copy raises, the
    request is aborted: its sources are released, its targets free again, and nothing that was not written is findable.

    Raises `CancelledError`, or what the memory raised.
    """
    try:
        for copy in request.copies:
            _require_wanted(cancelled)
            memory.copy((copy,))
        _require_wanted(cancelled)
    except BaseException:
        request.abort()
        raise
    request.copied()


def _require_wanted(cancelled: Callable[[], bool]) -> None:
    if cancelled():
        raise CancelledError


class Transfer(Generic[Copier]):
    """The copies of one request, on their way.

    Attributes:
        request: whose they are. The caller owns it as before, and calls nothing of it before the transfer is done.
    """

    def __init__(self, request: Copier) -> None:
        self.request = request
        self._cancelled = False
        self._future: Future[None] = Future()

    @property
    def done(self) -> bool:
        """Whether nothing of it will be read or written any more."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> Copier:
        """Wait until it is done; the request, which may now compute.

        Raises what the memory raised, or `concurrent.futures.CancelledError`: the request is aborted then. Raises
        `TimeoutError` after so many seconds, which changes nothing.
        """
        self._future.result(timeout)
        return self.request

    def cancel(self) -> None:
        """Nobody wants the request any more: abort it, before its next copy. Idempotent, no effect once it is done.

        Returns at once; `result` tells when it is over, and how.
        """
        self._cancelled = True

    def _is_cancelled(self) -> bool:
        return self._cancelled


class CopyWorkers:
    """A few threads that carry out copies, as many requests at a time.

    Args:
        memory: where the blocks lie: a `KVStore`, the engine's pool, or whatever has `copy`.
        workers: threads.
        most: transfers waiting and under way; `submit` waits while there are as many.

    A context manager, which waits for all transfers at its end, and cancels them when it is left by an error.
    Raises `OptionError` for numbers below 1, and for a memory that cannot copy.
    """

    def __init__(self, memory: BlockMemory, *, workers: int = 2, most: int = 64) -> None:
        if not callable(getattr(memory, "copy", None)):
            raise OptionError(f"memory is {memory!r}: expected a KVStore, or what has a method `copy(copies)`")
        self._memory = memory
        self._workers = whole_number(workers, "workers", least=1)
        self._threads = ThreadPoolExecutor(self._workers, "prefixcache-copy")
        self._places = threading.BoundedSemaphore(whole_number(most, "most", least=1))
        self._lock = threading.Lock()
        self._closed = False
        self._waiting: deque[Transfer[Any]] = deque()
        self._underway: set[Transfer[Any]] = set()  # the waiting ones too
        self._working = 0  # threads that have not yet seen the end of the waiting ones

    def submit(self, request: Copier) -> Transfer[Copier]:
        """Hand over the copies of an admitted request; waits for a place, not for the copies.

        The request is `copied` when they are done, `aborted` when they fail. Without copies it is done the same way.
        Raises `RequestError` when the workers are closed or no thread can be started, and `OptionError` for what is no
        request; the request is then as it was. Not from inside a copy: a worker cannot wait for its own place.
        """
        if not (hasattr(request, "copied") and hasattr(request, "abort")):
            raise OptionError(f"submit: {request!r} is no request with copies")
        transfer = Transfer(request)
        self._places.acquire()
        with self._lock:  # a close comes before this, and refuses it, or after, and waits for it
            if self._closed:
                self._places.release()
                raise RequestError("submit: the copy workers are closed")
            if self._working < self._workers:
                try:
                    self._threads.submit(self._work)  # it waits for this lock before it looks for anything to do
                except RuntimeError as error:
                    if not self._working:  # nobody is there to do it
                        self._places.release()
                        raise RequestError(f"submit: no copy worker can be started: {error}") from None
                else:
                    self._working += 1
            self._underway.add(transfer)
            self._waiting.append(transfer)
        return transfer

    def _work(self) -> None:
        """Carry out transfers as long as any wait: handing each one to a thread would cost as much as admitting it."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._working = max(self._working - 1, 0)
                    return
                transfer = self._waiting.popleft()
            error: BaseException | None = None
            try:
                carry_out(self._memory, transfer.request, transfer._is_cancelled)
            except BaseException as raised:
                error = raised
            with self._lock:
                self._underway.discard(transfer)
            self._places.release()
            if error is None:
                transfer._future.set_result(None)
            else:
                transfer._future.set_exception(error)

    def close(self, cancel: bool = False) -> None:
        """Take no more, and wait until all that was taken is done, or cancelled before its next copy. Idempotent.

        From any thread but the workers' own.
        """
        with self._lock:
            self._closed = True
            underway = list(self._underway) if cancel else []
        for transfer in underway:
            transfer.cancel()
        self._threads.shutdown()

    def __enter__(self) -> CopyWorkers:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.close(cancel=error is not None)
