"""Draws one-line mutants from the source: a comparison, sum, condition or number is changed, or a statement left out.

A mutant is known by what it changes (function, statement, change), not by where that stands, and is drawn by the digest of
those words and a seed. So it stays itself when code moves, and a change elsewhere draws no other mutants.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SEED: Final = 18
SURE: Final = 8  # of every area, however small it is
ONLY_WORDS: Final = {"explain", "_explain", "__repr__", "__str__"}  # what these change is the text of a message
COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: bytes `start` to `end` of `path` become `text`."""

    area: str
    function: str
    before: str
    after: str
    path: str
    start: int
    end: int
    text: str

    @property
    def name(self) -> str:
        """What it changes, in words that survive a move."""
        return f"{self.function}: {self.before} -> {self.after}"

    def apply(self, root: Path) -> bytes:
        """The mutated source."""
        source = (root / self.path).read_bytes()
        return source[: self.start] + self.text.encode() + source[self.end :]


def draw(candidates: list[Mutant], number: int) -> list[Mutant]:
    """That many of them, one of a line at most and some of every area, the same ones whenever the lines are the same."""
    ranked = sorted(candidates, key=lambda mutant: hashlib.sha256(f"{SEED} {mutant.name}".encode()).digest())
    first: dict[tuple[str, str], Mutant] = {}
    for mutant in ranked:
        first.setdefault((mutant.function, mutant.before), mutant)
    place = Counter[str]()
    sure, others = [], []
    for mutant in first.values():
        place[mutant.area] += 1
        (sure if place[mutant.area] <= SURE else others).append(mutant)
    return [*sure, *others][:number]


def candidates(root: Path, area: str, path: str) -> list[Mutant]:
    """Every mutant of a module's functions; of equal lines of one function, the first."""
    source = (root / path).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found, seen = [], Counter[str]()
    for function, statement in _statements(ast.parse(source)):
        before = _head(statement)
        for node, after, text in _changes(function, statement):
            mutant = Mutant(
                area, function.name, before, after, path,
                starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset, text,
            )  # fmt: skip
            seen[mutant.name] += 1
            if seen[mutant.name] == 1 and before != after:
                found.append(mutant)
    return found


def _statements(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, ast.stmt]]:
    """Every statement of every function, with the innermost one."""

    def visit(node: ast.AST, function: ast.FunctionDef | None) -> Iterator[tuple[ast.FunctionDef, ast.stmt]]:
        for child in ast.iter_child_nodes(node):
            inner = child if isinstance(child, ast.FunctionDef) else function
            if isinstance(child, ast.stmt) and function is not None and inner is function:
                yield function, child
            yield from visit(child, inner)

    yield from visit(tree, None)


def _head(statement: ast.stmt) -> str:
    return ast.unparse(statement).splitlines()[0]


def _changes(function: ast.FunctionDef, statement: ast.stmt) -> Iterator[tuple[ast.AST, str, str]]:
    """What can be changed in a statement (not in its body): where, what the statement becomes, and the new text there."""
    if function.name in ONLY_WORDS or isinstance(statement, ast.Assert | ast.Raise) or _is_logging(statement):
        return
    if _can_be_left_out(function, statement):
        yield statement, "pass", "pass"
    if isinstance(statement, ast.Return) and not (statement.value is None or _is_empty(statement.value)):
        yield statement, "return None", "return None"
    for parent, field, place, node in _expressions(statement):
        for other in _others(node):
            _put(parent, field, place, other)
            after = _head(statement)
            _put(parent, field, place, node)
            yield node, after, f"({ast.unparse(other)})"


def _can_be_left_out(function: ast.FunctionDef, statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call()) | ast.Delete() | ast.Continue() | ast.Break():
            return True
        case ast.AugAssign(target=target):
            targets = [target]
        case ast.Assign(targets=targets):
            pass
        case _:
            return False
    names = [part for one in targets for part in (one.elts if isinstance(one, ast.Tuple) else [one])]
    # without a local name, or an attribute that nothing has set before, the next line fails: that tests nothing
    return function.name != "__init__" and not any(isinstance(name, ast.Name) for name in names)


def _is_logging(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="log")))):
            return True
    return False


def _expressions(statement: ast.stmt) -> Iterator[tuple[ast.AST, str, int | None, ast.expr]]:
    """The expressions of a statement's own line with the places they stand in; no annotations, no texts."""
    todo: list[ast.AST] = [statement]
    while todo:
        parent = todo.pop(0)
        for field, value in ast.iter_fields(parent):
            if field in ("annotation", "returns", "decorator_list", "args") and not isinstance(parent, ast.Call):
                continue
            for place, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(node, ast.stmt | ast.JoinedStr | ast.ExceptHandler) or not isinstance(node, ast.AST):
                    continue
                if isinstance(node, ast.keyword) and node.arg == "strict":  # what cannot happen is not tested
                    continue
                if isinstance(node, ast.expr):
                    yield parent, field, place, node
                todo.append(node)


def _others(node: ast.expr) -> Iterator[ast.expr]:
    """What may stand there instead."""
    match node:
        case ast.Compare(left=left, ops=ops, comparators=right):
            for index, one in enumerate(ops):
                yield ast.Compare(left, [*ops[:index], COMPARISONS[type(one)](), *ops[index + 1 :]], right)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS and not isinstance(left, ast.JoinedStr):
            yield ast.BinOp(left, OPERATORS[type(op)](), right)
        case ast.BoolOp(op=ast.And(), values=values):
            yield ast.BoolOp(ast.Or(), values)
        case ast.BoolOp(op=ast.Or(), values=values):
            yield ast.BoolOp(ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)


def _is_empty(node: ast.expr) -> bool:
    """Whether a caller that asks "is there something?" cannot tell it from None."""
    return (isinstance(node, ast.Constant) and not node.value) or (isinstance(node, ast.List) and not node.elts)


def _put(parent: ast.AST, field: str, place: int | None, node: ast.expr) -> None:
    if place is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[place] = node
