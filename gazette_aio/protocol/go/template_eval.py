"""Evaluation of templates."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from gazette_aio.protocol.errors import ValidationError
from gazette_aio.protocol.go.template import (
    Branch,
    Constant,
    Dot,
    Fields,
    Function,
    Node,
    Operand,
    Pipeline,
    parse_template,
)
from gazette_aio.protocol.go.template_values import (
    ARITY,
    FUNCTIONS,
    CallError,
    TemplateMethod,
    TemplateRecord,
    Value,
    format_value,
    is_true,
    printf,
    type_name_of,
)
from gazette_aio.protocol.go.text import quote

if TYPE_CHECKING:
    from collections.abc import Sequence


class Template:
    """A parsed template.

    Args:
        text: The template.
        name: Name of the template in the texts of errors.

    Raises:
        ValidationError: The template isn't valid, or uses an unsupported feature.
    """

    def __init__(self, text: str, *, name: str) -> None:
        self._name = name
        self._nodes = parse_template(text, name=name)

    def execute(self, root: TemplateRecord) -> str:
        """Evaluate the template with `root` as its dot.

        Raises:
            ValidationError: The template doesn't fit the value.
        """
        return "".join(_Evaluation(self._name).walk(self._nodes, root))


class _Evaluation:
    def __init__(self, name: str) -> None:
        self._name = name
        self._pipeline: Pipeline | None = None

    def walk(self, nodes: Sequence[Node], dot: Value) -> list[str]:
        out: list[str] = []
        for node in nodes:
            match node:
                case str():
                    out.append(node)
                case Pipeline():
                    out.append(self._text(self._evaluate(node, dot)))
                case Branch():
                    value = self._evaluate(node.pipeline, dot)
                    if is_true(value):
                        out += self.walk(node.body, value if node.sets_dot else dot)
                    else:
                        out += self.walk(node.otherwise, dot)
        return out

    def _fail(self, reason: str, source: str, column: int | None = None) -> NoReturn:
        pipeline = self._pipeline
        assert pipeline is not None
        column = pipeline.column if column is None else column
        raise ValidationError(
            f"template: {self._name}:{pipeline.line}:{column}: "
            f"executing {quote(self._name)} at <{source}>: {reason}"
        )

    def _evaluate(self, pipeline: Pipeline, dot: Value) -> Value:
        enclosing, self._pipeline = self._pipeline, pipeline
        value: Value | None = None
        for command in pipeline.commands:
            last = () if value is None else (value,)
            value = self._command(command, dot, last)
        assert value is not None
        self._pipeline = enclosing or pipeline
        return value

    def _command(self, command: tuple[Operand, ...], dot: Value, last: tuple[Value, ...]) -> Value:
        first, arguments = command[0], command[1:]
        if isinstance(first, Function):
            return self._call(first, arguments, dot, last)
        if isinstance(first, Fields):
            values = [self._operand(argument, dot) for argument in arguments]
            return self._fields(first, dot, (*values, *last))
        if arguments:
            self._fail("can't give argument to non-function", _source(first))
        return self._operand(first, dot)

    def _operand(self, operand: Operand, dot: Value) -> Value:
        match operand:
            case Constant():
                return operand.value
            case Dot():
                return dot
            case Pipeline():
                return self._evaluate(operand, dot)
            case Fields():
                return self._fields(operand, dot, ())
            case Function():
                return self._call(operand, (), dot, ())

    def _fields(self, fields: Fields, dot: Value, arguments: tuple[Value, ...]) -> Value:
        value = dot if fields.of is None else self._operand(fields.of, dot)
        for index, name in enumerate(fields.names):
            if not isinstance(value, TemplateRecord) or name not in value.members:
                type_name = (
                    value.type_name if isinstance(value, TemplateRecord) else type_name_of(value)
                )
                self._fail(
                    f"can't evaluate field {name} in type {type_name}",
                    fields.source,
                    fields.column,
                )
            member = value.members[name]
            given = arguments if index == len(fields.names) - 1 else ()
            if isinstance(member, TemplateMethod):
                value = self._call_method(member, name, given, fields)
                continue
            if given:
                self._fail(
                    f"{name} is not a method but has arguments", fields.source, fields.column
                )
            value = member() if callable(member) else member
        return value

    def _call_method(
        self, method: TemplateMethod, name: str, arguments: tuple[Value, ...], fields: Fields
    ) -> Value:
        if len(arguments) != 1:
            self._fail(
                f"wrong number of args for {name}: want 1 got {len(arguments)}",
                fields.source,
                fields.column,
            )
        if not isinstance(argument := arguments[0], str):
            self._fail(f"expected string; found {self._text(argument)}", fields.source)
        return method.call(argument)

    def _call(
        self,
        function: Function,
        operands: tuple[Operand, ...],
        dot: Value,
        last: tuple[Value, ...],
    ) -> Value:
        name = function.name
        if name in ("and", "or"):
            return self._and_or(function, operands, dot, last)
        arguments = [*(self._operand(operand, dot) for operand in operands), *last]
        least, most = ARITY[name]
        if not least <= len(arguments) <= most:
            want = f"at least {least}" if most > least else str(least)
            self._fail(
                f"wrong number of args for {name}: want {want} got {len(arguments)}",
                name,
                function.column,
            )
        try:
            match name:
                case "print":
                    return self._print(arguments)
                case "println":
                    return " ".join(map(self._text, arguments)) + "\n"
                case "printf":
                    return printf(arguments)
                case _:
                    return FUNCTIONS[name](*arguments)
        except CallError as error:
            assert self._pipeline is not None
            self._fail(f"error calling {name}: {error}", self._pipeline.source, function.column)

    def _and_or(
        self,
        function: Function,
        operands: tuple[Operand, ...],
        dot: Value,
        last: tuple[Value, ...],
    ) -> Value:
        if not operands and not last:
            self._fail(
                f"wrong number of args for {function.name}: want at least 1 got 0",
                function.name,
                function.column,
            )
        value: Value | None = None
        for operand in operands:
            value = self._operand(operand, dot)
            if is_true(value) == (function.name == "or"):
                return value
        value = last[0] if last else value
        assert value is not None
        return value

    def _print(self, arguments: Sequence[Value]) -> str:
        text = ""
        for index, argument in enumerate(arguments):
            # A space separates two operands, unless one of them is a string.
            if (
                index
                and not isinstance(argument, str)
                and not isinstance(arguments[index - 1], str)
            ):
                text += " "
            text += self._text(argument)
        return text

    def _text(self, value: Value) -> str:
        try:
            return format_value(value)
        except CallError as error:
            assert self._pipeline is not None
            self._fail(str(error), self._pipeline.source)


def _source(operand: Operand) -> str:
    match operand:
        case Constant() | Fields() | Pipeline():
            return operand.source
        case Function():
            return operand.name
        case Dot():
            return "."
