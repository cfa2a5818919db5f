"""Running one job: whatever a handler does becomes an outcome, bounded and storable."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from pool import Context, Discard, Handler, Job, Retry, Snooze
from pool.job import Completed, Failed, Outcome, Snoozed
from pool.runner import ERROR_LIMIT, TRACEBACK_LIMIT, run


class Silent:
    """A monitor that hears nothing."""

    def progress(self, done: float, total: float) -> None:
        """Nothing."""

    def cancelled(self) -> bool:
        """Never."""
        return False


def run_one(function: Callable[..., Any], payload: str = "{}", type: str = "t") -> Outcome:
    job = Job(7, type, payload, 2, 5, None, crashes=0, run_at="2030-01-01 00:00:00", priority=0, worker="h:1:t")
    return run(job, {"t": Handler(function, "t")}, Silent())


def failed(function: Callable[..., Any], payload: str = "{}") -> Failed:
    outcome = run_one(function, payload)
    assert isinstance(outcome, Failed)
    for text in (outcome.error, outcome.traceback):
        text.encode()
    assert len(outcome.error) <= ERROR_LIMIT + 100
    assert len(outcome.traceback) <= TRACEBACK_LIMIT + 100
    return outcome


def raising(error: BaseException) -> Callable[..., NoReturn]:
    def function() -> NoReturn:
        raise error

    return function


def test_an_object_becomes_keyword_arguments_and_any_other_value_the_only_one() -> None:
    assert run_one(lambda **kw: kw, '{"a": 1, "b": [2]}') == Completed('{"a":1,"b":[2]}')
    assert run_one(lambda value: value, "[1, 2]") == Completed("[1,2]")
    assert run_one(lambda value: value, '"text"') == Completed('"text"')
    assert run_one(lambda: None) == Completed(None)


def test_false_and_zero_are_results_and_none_is_not() -> None:
    assert run_one(lambda: False) == Completed("false")
    assert run_one(lambda: 0) == Completed("0")
    assert run_one(lambda: None) == Completed(None)


def test_a_handler_that_asks_for_its_context_gets_it_beside_the_arguments() -> None:
    def function(a: int, ctx: Context) -> list[object]:
        ctx.progress(1, 2)
        ctx.check_cancelled()
        return [a, ctx.job_id, ctx.type, ctx.attempt, ctx.max_attempts, ctx.cancelled]

    assert run_one(function, '{"a": 1}') == Completed('[1,7,"t",2,5,false]')


def test_a_payload_that_names_ctx_itself_fails_the_job_and_nothing_else() -> None:
    def function(ctx: Context) -> None: ...

    assert "ctx" in failed(function, '{"ctx": 1}').error


def test_wrong_arguments_fail_with_the_function_s_own_words() -> None:
    def function(source: str) -> None: ...

    assert "unexpected keyword argument 'sauce'" in failed(function, '{"sauce": 1}').error


def test_an_unknown_type_fails_and_names_the_known_ones() -> None:
    outcome = run_one(lambda: None, type="tumbnail")
    assert isinstance(outcome, Failed) and not outcome.permanent
    assert outcome.error == "no handler for the type 'tumbnail'; this pool has: t"


@pytest.mark.parametrize(
    "payload",
    ["{", "", "NaN", "[" * 100_000, f"[{'1' * 5000}, {'[' * 100_000}{']' * 100_000}]"],
    ids=["open", "empty", "NaN", "deep", "deep behind a long integer"],
)
def test_a_payload_that_is_not_json_fails_with_that_reason(payload: str) -> None:
    assert failed(lambda *_: None, payload).error.startswith("the payload is not JSON: ")


def test_retry_discard_and_snooze_steer_the_end() -> None:
    assert run_one(raising(Retry(5, "later"))) == Failed("later", delay=5.0, raised="pool.declare.Retry")
    assert run_one(raising(Retry())) == Failed("retry asked for", raised="pool.declare.Retry")
    assert run_one(raising(Discard("never"))) == Failed("never", permanent=True, raised="pool.declare.Discard")
    assert run_one(raising(Snooze(60))) == Snoozed(60.0)
    assert run_one(raising(Snooze(float("inf")))) == Snoozed(Snooze(float("inf")).delay)


def test_a_retry_with_an_impossible_delay_fails_the_job_by_that_name() -> None:
    def function() -> None:
        raise Retry(-1)

    assert "UsageError" in failed(function).error


@pytest.mark.parametrize("error", [SystemExit(3), SystemExit(), KeyboardInterrupt(), GeneratorExit(), MemoryError()])
def test_no_exception_of_a_handler_leaves_the_runner(error: BaseException) -> None:
    assert failed(raising(error)).error.startswith(type(error).__name__)


def test_a_failure_keeps_the_traceback_from_the_handler_s_frame_on() -> None:
    def broken() -> None:
        raise ValueError("here")

    trace = failed(broken).traceback
    assert "in broken" in trace and 'raise ValueError("here")' in trace and "pool/runner.py" not in trace


class OddConstructor(Exception):
    def __init__(self, one: int, *, two: int) -> None:
        self.one, self.two = one, two


class RaisingText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class ExitingText(Exception):
    def __str__(self) -> str:
        sys.exit(1)


@pytest.mark.parametrize(
    "error", [OddConstructor(1, two=2), RaisingText(), ExitingText(), ValueError("\ud800"), ValueError()]
)
def test_odd_exceptions_are_described_all_the_same(error: Exception) -> None:
    outcome = failed(raising(error))
    assert outcome.error.startswith(type(error).__qualname__) and outcome.traceback


def test_a_message_of_20_mb_is_bounded_and_keeps_its_beginning_and_its_end() -> None:
    outcome = failed(raising(ValueError("begin" + "x" * 20_000_000 + "end")))
    assert outcome.error.startswith("ValueError: begin") and outcome.error.endswith("end")
    assert outcome.traceback.rstrip().endswith("end")


def test_endless_recursion_and_endless_causes_are_bounded() -> None:
    def forever() -> None:
        forever()

    assert "RecursionError" in failed(forever).error

    def chain() -> None:
        error: BaseException | None = None
        for number in range(5_000):
            following = ValueError(f"cause {number}" + "x" * 100)
            following.__cause__ = error
            error = following
        assert error is not None
        raise error

    assert "cause 4999" in failed(chain).error


@pytest.mark.parametrize("result", [{1}, float("nan"), b"x", {"a": object()}, {1: 2}])
def test_a_result_json_cannot_hold_fails_the_job_with_its_place(result: object) -> None:
    assert failed(lambda: result).error.startswith("the handler returned what JSON cannot hold: result")
