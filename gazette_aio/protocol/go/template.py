"""Syntax of templates: a subset of the language of path postfixes.

    text {{ pipeline }} {{- trims blanks before, and after -}} {{/* comment */}}
    {{ if pipeline }} … {{ else if pipeline }} … {{ else }} … {{ end }}
    {{ with pipeline }} … {{ else }} … {{ end }}

A pipeline is a sequence of commands, `a | b`. Each command passes its value to the next command, as
the last argument. A command is an operand, or a function or method with operands as arguments.
Operands are `.`, `.Field.Field`, strings, integers, booleans, and pipelines in parentheses.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias

from gazette_aio.protocol.errors import ValidationError
from gazette_aio.protocol.go.text import quote

if TYPE_CHECKING:
    from collections.abc import Iterator

FUNCTIONS: Final = frozenset(
    {"and", "eq", "ge", "gt", "index", "le", "len", "lt", "ne", "not", "or"}
    | {"print", "printf", "println"}
)
"""Supported functions."""

_UNSUPPORTED: Final = frozenset({"block", "break", "continue", "define", "range", "template"})
_WORDS: Final = FUNCTIONS | _UNSUPPORTED | {"else", "end", "false", "if", "true", "with"}

_MAX_LENGTH: Final = 4096
_MAX_DEPTH: Final = 64
_BLANKS: Final = " \t\r\n"

_TOKEN: Final = re.compile(
    r"""(?P<blank>[ \t\r\n]+)
    |(?P<field>\.[^\W\d]\w*)
    |(?P<word>[^\W\d]\w*)
    |(?P<number>[+-]?(?:0[xX][0-9A-Fa-f]+|[0-9]+))
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<raw>`[^`]*`)
    |(?P<symbol>[.|()])
    """,
    re.VERBOSE,
)
_ACTION_END: Final = re.compile(r"[ \t\r\n]+-}}|}}")
_STRING_ESCAPE: Final = re.compile(
    r"""\\(?:[abfnrtv\\"]|[01][0-7]{2}|x[0-7][0-9A-Fa-f]|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8})"""
)


@dataclass(frozen=True, slots=True)
class Fields:
    """Fields of an operand, or of the dot; the last may be a method."""

    of: Operand | None
    names: tuple[str, ...]
    source: str
    column: int


@dataclass(frozen=True, slots=True)
class Function:
    """Name of a function."""

    name: str
    column: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A string, integer or boolean."""

    value: str | int | bool
    source: str


@dataclass(frozen=True, slots=True)
class Dot:
    """Value of the innermost `with`, or of the template."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands, each a sequence of operands."""

    commands: tuple[tuple[Operand, ...], ...]
    line: int
    column: int
    source: str


Operand: TypeAlias = Fields | Function | Constant | Dot | Pipeline


@dataclass(frozen=True, slots=True)
class Branch:
    """An `if` or a `with`; `with` sets the dot to its value."""

    pipeline: Pipeline
    body: tuple[Node, ...]
    otherwise: tuple[Node, ...]
    sets_dot: bool


Node: TypeAlias = str | Pipeline | Branch


def parse_template(text: str, *, name: str) -> tuple[Node, ...]:
    """Parse a template.

    Args:
        text: The template.
        name: Name of the template in the texts of errors.

    Raises:
        ValidationError: The template isn't valid, or uses an unsupported feature.
    """
    return _Parser(text, name).parse()


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int
    follows_blank: bool


class _Parser:
    def __init__(self, text: str, name: str) -> None:
        self._text = text
        self._name = name
        self._at = 0
        self._depth = 0
        self._tokens: list[_Token] = []
        self._next = 0

    def parse(self) -> tuple[Node, ...]:
        if len(self._text) > _MAX_LENGTH:
            self._fail(f"more than {_MAX_LENGTH} characters")
        nodes, keyword = self._parse_nodes()
        if keyword:
            self._fail(f"unexpected {{{{{keyword}}}}}")
        return nodes

    def _fail(self, reason: str, at: int | None = None) -> NoReturn:
        line = 1 + self._text.count("\n", 0, self._at if at is None else at)
        raise ValidationError(f"template: {self._name}:{line}: {reason}")

    def _parse_nodes(self) -> tuple[tuple[Node, ...], str]:
        """Parse up to the end, or past an `end` or `else`, and return that keyword."""
        nodes: list[Node] = []
        while self._at < len(self._text):
            begin = self._text.find("{{", self._at)
            if begin < 0:
                nodes.append(self._text[self._at :])
                self._at = len(self._text)
                break
            content = self._text[self._at : begin]
            self._at = begin + 2
            if self._text[self._at : self._at + 1] == "-" and self._is_blank(self._at + 1):
                content = content.rstrip(_BLANKS)
                self._at += 2
            if content:
                nodes.append(content)
            if self._skip_comment():
                continue
            self._read_action()
            keyword = self._tokens[0].text if self._tokens else ""
            if keyword == "end" and len(self._tokens) > 1:
                self._fail(f"unexpected {quote(self._tokens[1].text)} in end")
            if keyword in ("end", "else"):
                return tuple(nodes), keyword
            nodes.append(self._parse_action())
        return tuple(nodes), ""

    def _is_blank(self, at: int) -> bool:
        return self._text[at : at + 1] in (" ", "\t", "\r", "\n")

    def _skip_comment(self) -> bool:
        begin = self._at
        while self._is_blank(begin):
            begin += 1
        if not self._text.startswith("/*", begin):
            return False
        end = self._text.find("*/", begin + 2)
        if end < 0:
            self._fail("unclosed comment")
        self._at = end + 2
        if (match := _ACTION_END.match(self._text, self._at)) is None:
            self._fail("comment ends before closing delimiter")
        self._close_action(match)
        return True

    def _close_action(self, match: re.Match[str]) -> None:
        self._at = match.end()
        if len(match[0]) > 2:
            while self._is_blank(self._at):
                self._at += 1

    def _read_action(self) -> None:
        """Split an action into its tokens, and move past its end."""
        self._tokens, self._next = list(self._lex()), 0

    def _lex(self) -> Iterator[_Token]:
        follows_blank = True
        while (match := _ACTION_END.match(self._text, self._at)) is None:
            if self._at >= len(self._text):
                self._fail("unclosed action")
            token = _TOKEN.match(self._text, self._at)
            if token is None or token.lastgroup is None:
                self._fail(f"unexpected {quote(self._text[self._at])} in command")
            if token.lastgroup == "word" and token[0] not in _WORDS:
                self._fail(f"function {quote(token[0])} not defined")
            if token.lastgroup != "blank":
                yield _Token(token.lastgroup, token[0], self._at, follows_blank)
            follows_blank = token.lastgroup == "blank"
            self._at = token.end()
        self._close_action(match)

    def _parse_action(self) -> Node:
        keyword = self._tokens[0].text if self._tokens and self._tokens[0].kind == "word" else ""
        if keyword in ("if", "with"):
            self._next = 1
            return self._parse_branch(keyword)
        if keyword in _UNSUPPORTED:
            self._fail(f"{{{{{keyword}}}}} is not supported")
        pipeline = self._parse_pipeline("command")
        self._expect_end("command")
        return pipeline

    def _parse_branch(self, keyword: str) -> Branch:
        self._enter()
        pipeline = self._parse_pipeline(keyword)
        self._expect_end(keyword)
        body, closed_by = self._parse_nodes()
        otherwise: tuple[Node, ...] = ()
        if closed_by == "else":
            if len(self._tokens) > 1:
                following = self._tokens[1].text
                if following not in ("if", "with"):
                    self._fail(f"unexpected {quote(following)} in else")
                self._next = 2
                # The nested branch consumes the end of both.
                otherwise = (self._parse_branch(following),)
                closed_by = "end"
            else:
                otherwise, closed_by = self._parse_nodes()
        if closed_by != "end":
            self._fail("unexpected {{else}}" if closed_by else "unexpected EOF")
        self._depth -= 1
        return Branch(pipeline, body, otherwise, keyword == "with")

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._fail("nested too deeply")

    def _peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _expect_end(self, context: str) -> None:
        if (token := self._peek()) is not None:
            self._fail(f"unexpected {quote(token.text)} in {context}", token.at)

    def _parse_pipeline(self, context: str) -> Pipeline:
        first = self._peek()
        begin = first.at if first is not None else self._at
        commands: list[tuple[Operand, ...]] = []
        while True:
            command = self._parse_command()
            if not command:
                self._fail(f"missing value for {context}", begin)
            if commands and not isinstance(command[0], Fields | Function):
                self._fail(f"non executable command in pipeline stage {len(commands) + 1}", begin)
            commands.append(command)
            token = self._peek()
            if token is None or token.text != "|" or token.kind != "symbol":
                break
            self._next += 1
        end = self._tokens[self._next - 1]
        source = self._text[begin : end.at + len(end.text)]
        line = 1 + self._text.count("\n", 0, begin)
        column = begin - (self._text.rfind("\n", 0, begin) + 1)
        return Pipeline(tuple(commands), line, column, source)

    def _parse_command(self) -> tuple[Operand, ...]:
        operands: list[Operand] = []
        while (token := self._peek()) is not None and token.text not in ("|", ")"):
            if operands and not token.follows_blank:
                self._fail(f"unexpected {quote(token.text)} in operand", token.at)
            operands.append(self._parse_operand(token))
        return tuple(operands)

    def _parse_operand(self, token: _Token) -> Operand:
        self._next += 1
        operand: Operand | None = None
        match token.kind:
            case "field":
                self._next -= 1
            case "word" if token.text in ("true", "false"):
                operand = Constant(token.text == "true", token.text)
            case "word":
                if token.text not in FUNCTIONS:
                    self._fail(f"unexpected {{{{{token.text}}}}}", token.at)
                operand = Function(token.text, self._column(token.at))
            case "number":
                operand = Constant(self._parse_number(token), token.text)
            case "string":
                operand = Constant(self._parse_string(token), token.text)
            case "raw":
                operand = Constant(token.text[1:-1], token.text)
            case _ if token.text == "(":
                self._enter()
                operand = self._parse_pipeline("parenthesized pipeline")
                if (closing := self._peek()) is None or closing.text != ")":
                    self._fail("unclosed left paren", token.at)
                self._next += 1
                self._depth -= 1
            case _:
                operand = Dot()
        return self._parse_fields(operand, token.at)

    def _parse_fields(self, operand: Operand | None, begin: int) -> Operand:
        names: list[str] = []
        end = begin
        while (token := self._peek()) is not None and token.kind == "field":
            if token.follows_blank and (names or operand is not None):
                break
            names.append(token.text[1:])
            end = token.at + len(token.text)
            self._next += 1
        if not names:
            assert operand is not None
            return operand
        if isinstance(operand, Constant | Function | Dot):
            self._fail(f"unexpected {quote('.' + names[0])} after term", begin)
        column = self._column(begin) + (len(names[0]) + 1 if len(names) > 1 else 0)
        return Fields(operand, tuple(names), self._text[begin:end], column)

    def _column(self, at: int) -> int:
        return at - (self._text.rfind("\n", 0, at) + 1)

    def _parse_number(self, token: _Token) -> int:
        # Integers with more digits don't fit 64 bits.
        if len(token.text) > 24:
            self._fail(f"bad number syntax: {quote(token.text)}", token.at)
        digits = token.text.lstrip("+-")
        octal = len(digits) > 1 and digits[0] == "0" and digits[1] not in "xX"
        try:
            value = int(token.text, 8 if octal else 0)
        except ValueError:
            self._fail(f"bad number syntax: {quote(token.text)}", token.at)
        if not -(1 << 63) <= value < 1 << 63:
            self._fail(f"integer overflow: {quote(token.text)}", token.at)
        return value

    def _parse_string(self, token: _Token) -> str:
        # Escapes of non-ASCII bytes are unsupported: their text may be invalid.
        if "\\" in _STRING_ESCAPE.sub("", token.text):
            self._fail(f"invalid syntax in {quote(token.text)}", token.at)
        try:
            value = ast.literal_eval(token.text)
        except (SyntaxError, ValueError):
            self._fail(f"invalid syntax in {quote(token.text)}", token.at)
        assert isinstance(value, str)
        return value
