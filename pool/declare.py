"""What a handler's author meets: the decorator, the context, and the three exceptions that steer a job's end."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from pool.clock import duration
from pool.errors import UsageError
from pool.job import DEFAULT_MAX_ATTEMPTS, DEFAULT_MAX_CRASHES

if TYPE_CHECKING:
    from pool.job import Enqueued
    from pool.queue import Queue
    from pool.spec import EnqueueOptions

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

#: Seconds a handler may run when it says nothing; ``timeout=None`` asks for no limit.
DEFAULT_TIMEOUT = 900.0


class Retry(Exception):
    """Raise to try again in ``delay`` seconds (or by the default delay), counting the attempt."""

    def __init__(self, delay: float | None = None, reason: str = "retry asked for") -> None:
        super().__init__(reason)
        self.delay = None if delay is None else duration(delay)


class Discard(Exception):
    """Raise when the job can never work: it is dead at once, with the reason, and is not retried."""

    def __init__(self, reason: str = "discarded") -> None:
        super().__init__(reason)


class Snooze(Exception):
    """Raise to come back in ``delay`` seconds without the attempt being counted."""

    def __init__(self, delay: float) -> None:
        super().__init__(f"snoozed for {delay} s")
        self.delay = duration(delay)


class JobCancelled(Exception):
    """Raised by :meth:`Context.check_cancelled` once someone has asked to cancel the running job."""


class Monitor(Protocol):
    """Where a context reports to and asks; a worker's is its page of shared memory."""

    def progress(self, done: float, total: float) -> None: ...
    def cancelled(self) -> bool: ...


class Context:
    """What a running handler may know and say about its job."""

    __slots__ = ("_monitor", "attempt", "job_id", "max_attempts", "type")

    def __init__(self, job_id: int, type: str, attempt: int, max_attempts: int, monitor: Monitor) -> None:
        self.job_id = job_id
        self.type = type
        self.attempt = attempt
        self.max_attempts = max_attempts
        self._monitor = monitor

    def progress(self, done: float, total: float = 0) -> None:
        """Say how far the job is, in any unit. Each call also tells a ``stall_timeout`` that the job is moving."""
        self._monitor.progress(done, total)

    @property
    def cancelled(self) -> bool:
        """True once someone has asked to cancel this job; a long handler looks here and returns early."""
        return self._monitor.cancelled()

    def check_cancelled(self) -> None:
        """Raise :class:`JobCancelled` once someone has asked to cancel this job."""
        if self.cancelled:
            raise JobCancelled(f"job {self.job_id} was cancelled")


class Handler(Generic[P, R]):
    """A decorated function: still callable as it was, and known to the pool by its job type.

    Attributes:
        type: the job type it handles.
        timeout: seconds one attempt may take, or None for no limit.
        stall_timeout: seconds between two ``ctx.progress`` calls before the job counts as stalled, or None.
        max_attempts: tries a job gets when its enqueue does not say.
        max_crashes: deaths of its worker a job may cause before it is dead.
        group: how many jobs may share a transaction, for handlers far below a millisecond.
    """

    def __init__(
        self,
        function: Callable[P, R],
        type: str,
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        stall_timeout: float | None = None,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        max_crashes: int = DEFAULT_MAX_CRASHES,
        group: int = 1,
    ) -> None:
        if inspect.iscoroutinefunction(function):
            raise UsageError(
                f"{function.__qualname__} is async; a handler is an ordinary function (asyncio.run inside)"
            )
        self.function = function
        self.type = _checked_type(type)
        self.timeout = _seconds(timeout, "timeout")
        self.stall_timeout = _seconds(stall_timeout, "stall_timeout")
        self.max_attempts = _count(max_attempts, "max_attempts")
        self.max_crashes = _count(max_crashes, "max_crashes")
        self.group = _count(group, "group")
        self.signature = inspect.signature(function)
        self.wants_context = "ctx" in self.signature.parameters
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__wrapped__ = function

    @property
    def where(self) -> str:
        """``module:qualname (file:line)``, to name it in a message."""
        code = inspect.unwrap(self.function).__code__
        return f"{self.__module__}:{self.__qualname__} ({code.co_filename}:{code.co_firstlineno})"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Handler[P, R]:
        return self

    def __repr__(self) -> str:
        return f"<handler {self.type!r} {self.__module__}:{self.__qualname__}>"

    def enqueue(self, queue: Queue, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Enqueue a call of the function; arguments are checked against its signature now, not in the worker."""
        return self.options().enqueue(queue, *args, **kwargs)

    def options(self, options: EnqueueOptions | None = None, /, **named: Any) -> Call[P]:
        """The same with options of ``Queue.enqueue`` set, such as ``key``, ``priority`` or ``delay``."""
        return Call(self, {**(options or {}), **named})

    def payload(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The JSON object that stands for this call. Raises TypeError as the call itself would."""
        signature = self.signature
        if self.wants_context:
            kept = [p for name, p in signature.parameters.items() if name != "ctx"]
            signature = signature.replace(parameters=kept)
        bound = signature.bind(*args, **kwargs)
        payload: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                payload.update(value)
            elif kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL):
                raise TypeError(f"{self.__qualname__}: the argument {name!r} has no name a JSON object could carry")
            else:
                payload[name] = value
        return payload


class Call(Generic[P]):
    """A handler with enqueue options set, made by :meth:`Handler.options`."""

    def __init__(self, handler: Handler[P, Any], options: dict[str, Any]) -> None:
        self._handler = handler
        self._options = options

    def enqueue(self, queue: Queue, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Enqueue a call of the handler's function with these options."""
        options = {"max_attempts": self._handler.max_attempts, **self._options}
        return queue.enqueue(self._handler.type, self._handler.payload(*args, **kwargs), **options)


class _WantsContext(Protocol[R]):
    def __call__(self, *args: Any, ctx: Context, **kwargs: Any) -> R: ...


class _Decorator(Protocol):
    """Keeps a function's parameters for its ``enqueue``, except where it takes ``ctx``, which the pool passes."""

    @overload
    def __call__(self, function: _WantsContext[R]) -> Handler[..., R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Handler[P, R]: ...


#: Every handler declared in this process, in order; pool.registry reads it after importing the modules.
declared: list[Handler[..., Any]] = []
_declaring = threading.Lock()


def handler(
    type: str,
    *,
    timeout: float | None = DEFAULT_TIMEOUT,
    stall_timeout: float | None = None,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    max_crashes: int = DEFAULT_MAX_CRASHES,
    group: int = 1,
) -> _Decorator:
    """Make a function the handler of a job type. See :class:`Handler` for the options.

    Raises:
        UsageError: an empty type, or an option that can never work.
    """

    def decorate(function: Callable[..., Any]) -> Handler[..., Any]:
        made = Handler(
            function,
            type,
            timeout=timeout,
            stall_timeout=stall_timeout,
            max_attempts=max_attempts,
            max_crashes=max_crashes,
            group=group,
        )
        with _declaring:
            declared.append(made)
        return made

    return cast(_Decorator, decorate)


def _checked_type(type: str) -> str:
    if not isinstance(type, str) or not type.strip():
        raise UsageError(f'a handler needs a job type, as in @handler("thumbnail"), not {type!r}')
    return type


def _seconds(value: float | None, name: str) -> float | None:
    if value is None:
        return None
    seconds = duration(value, name)
    if seconds == 0:
        raise UsageError(f"{name}=0 would end every job at once; use None for no limit")
    return seconds


def _count(value: int, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{name} takes a whole number from 1, not {value!r}")
    return value
