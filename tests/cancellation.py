"""Cancellation of a coroutine at each of its suspensions, one after the other."""

from __future__ import annotations

import ast
import asyncio
import inspect
import itertools
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from anyio import CancelScope

T = TypeVar("T")
Line: TypeAlias = tuple[str, int]
"""A file, and the number of a line."""


class _Stepped(Generic[T]):
    """Awaits a coroutine, and cancels the task which does, or a scope, upon a suspension."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, T], cancel_at: int, scope: CancelScope | None = None
    ) -> None:
        self.coroutine = coroutine
        self.cancel_at = cancel_at
        self.scope = scope
        self.was_cancelled = False
        self.lines: list[Line] = []  # At which the coroutine and those it awaits were cancelled.

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self.coroutine.__await__()
        send: Callable[[], Any] = lambda: next(steps)  # noqa: E731
        for number in itertools.count():
            try:
                suspended_on = send()
            except StopIteration as stop:
                result: T = stop.value
                return result
            if number == self.cancel_at:
                # The task has yet to learn what it's suspended on, and cancels that at once.
                self.was_cancelled = True
                self.lines = list(_awaiting(self.coroutine))
                task = asyncio.current_task()
                assert task is not None
                task.cancel() if self.scope is None else self.scope.cancel()
            try:
                value = yield suspended_on
            except BaseException as error:  # noqa: BLE001
                send = lambda error=error: steps.throw(error)  # type: ignore[misc]  # noqa: E731
            else:
                send = lambda value=value: steps.send(value)  # type: ignore[misc]  # noqa: E731
        raise AssertionError("unreachable")


def _awaiting(coroutine: Any) -> Generator[Line]:
    """Yield the lines at which a suspended coroutine, and those it awaits, are."""
    while inspect.iscoroutine(coroutine):
        yield coroutine.cr_code.co_filename, coroutine.cr_frame.f_lineno
        coroutine = coroutine.cr_await


async def cancel_at(
    coroutine: Coroutine[Any, Any, Any],
    number: int,
    *,
    by_scope: bool = False,
    lines: set[Line] | None = None,
) -> bool:
    """Run `coroutine` in a task, cancelled at its suspension `number`, counted from zero.

    Args:
        coroutine: What to run.
        number: The suspension.
        by_scope: Whether a scope of anyio is cancelled, rather than the task.
        lines: Takes the lines at which it was cancelled.

    Returns:
        Whether it has as many suspensions. If not, it came to its end.
    """
    scope = CancelScope()
    stepped = _Stepped(coroutine, number, scope if by_scope else None)

    async def run() -> None:
        with scope:
            await stepped

    task = asyncio.create_task(run())
    await asyncio.wait((task,))
    if lines is not None:
        lines.update(stepped.lines)
    if not task.cancelled():
        # It was done, or had nothing left to do but to return. An error is none of cancellation.
        await task
    return stepped.was_cancelled


async def cancel_at_every_await(
    operation: Callable[[], Coroutine[Any, Any, Any]],
    check: Callable[[], Awaitable[None]],
) -> int:
    """Run `operation` anew for each of its suspensions, cancelled there, and then once through.

    Args:
        operation: Returns a fresh coroutine.
        check: Checks what has become of it, after each run.

    Returns:
        How many suspensions were hit.
    """
    for number in itertools.count():
        was_cancelled = await cancel_at(operation(), number)
        await check()
        if not was_cancelled:
            return number
    raise AssertionError("unreachable")


def awaits_left(
    module: ModuleType, lines: Collection[Line], *, without: Collection[str] = ()
) -> list[str]:
    """Return the awaits of a module whose lines are none of `lines`.

    Args:
        module: The module.
        lines: Lines at which it was cancelled.
        without: Functions to leave out.
    """
    path = str(module.__file__)
    text = Path(path).read_text()
    source = text.splitlines()
    reached = {line for file, line in lines if file == path}
    left: list[str] = []
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.AsyncFunctionDef) or function.name in without:
            continue
        for node in ast.walk(function):
            if not isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith):
                continue
            end = node.end_lineno if isinstance(node, ast.Await) else node.lineno
            if reached.isdisjoint(range(node.lineno, (end or node.lineno) + 1)):
                left.append(f"{function.name}: {source[node.lineno - 1].strip()}")
    return left


class Closeable(Protocol):
    async def aclose(self) -> None: ...


async def close_at_every_await(
    opened: Callable[[], Awaitable[Closeable]],
    check: Callable[[], object] = lambda: None,
) -> int:
    """Open something anew for each suspension of its `aclose()`, cancel that there, and call again.

    When the last call returns, no task which began since may be left.

    Args:
        opened: Returns what's to be closed, with as much under way as it may have.
        check: Checks, right after the last call, what else must not be left.

    Returns:
        How many suspensions were hit.
    """
    for run in itertools.count():
        number, again = divmod(run, 2)
        before = asyncio.all_tasks()
        thing = await opened()
        was_cancelled = await cancel_at(thing.aclose(), number)
        if again:
            await cancel_at(thing.aclose(), 0)
        await thing.aclose()
        left = {task for task in asyncio.all_tasks() - before if _is_of_the_package(task)}
        assert not left, f"left after a cancellation at suspension {number}: {left}"
        check()
        await thing.aclose()
        if again and not was_cancelled:
            return number
    raise AssertionError("unreachable")


def _is_of_the_package(task: asyncio.Task[Any]) -> bool:
    # Those of grpcio, which serve RPCs of brokers in this process, have no names.
    return "gazette" in task.get_name() and not task.done()
