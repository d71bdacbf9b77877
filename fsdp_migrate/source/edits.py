"""Carries out the edits of all uses at once, and touches nothing else."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import libcst as cst

from fsdp_migrate.left_comments import GOES_ON, MARK
from fsdp_migrate.source.python import imports
from fsdp_migrate.source.python.placing import place
from fsdp_migrate.source.uses import Found, Remove, Replace, Unwrap


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fsdp_migrate.source.python.text import Source
    from fsdp_migrate.source.uses import Need


def apply_edits(source: Source, found: Sequence[Found]) -> str:
    """Return the source's text with every edit done and every comment set; the same text if there is none."""
    applier = _Applier(source, found)
    if not applier.has_work:
        return source.code
    after = source.module.visit(applier).code
    # LibCST loses the last line end where lines end in a bare carriage return.
    return (
        after + source.module.default_newline if source.code.endswith("\r") > after.endswith("\r") else after
    )


def comment_of(several: Sequence[Found]) -> str:
    """Return the comment that belongs above uses with one code: what is said of each, once."""
    code = several[0].code
    said: list[str] = []
    for text in map(_text_of, several):
        # The same fault, of which less is known there, is said already.
        if not any(each.startswith(text) for each in said):
            said = [each for each in said if not text.startswith(each)] + [text]
    text = " Also: ".join(said[:_MOST_SAID])
    more = "" if f"explain {code}" in text else f" See `fsdp-migrate explain {code}`."
    lines = (line for each in several for line in each.paste.splitlines())
    paste = "".join(f"\n{MARK}    {line}".rstrip() for line in lines)
    return f"{MARK}{code} {text}{more}{paste}"


def _text_of(found: Found) -> str:
    """Return what is to be said of a use, or nothing."""
    return found.becomes if found.action == "commented" else found.note


_MOST_SAID = 3
_NARROWEST, _WIDEST = 88, 120
_LEAST = 40  # of a line, however far its statement is indented
_LONG = 500  # one that is not longer stays in one line: a search for the comments shows it whole


def width_of(code: str) -> int:
    """Return how long the lines of a source are, and so may be those of its comments."""
    return min(max(_NARROWEST, *map(len, code.splitlines() or [""])), _WIDEST)


def _in_lines(comment: str, width: int) -> list[str]:
    """Return the lines of a comment: a long one is as wide as the file, and what it pastes is as it is."""
    said, *paste = comment.split("\n")
    if len(said) <= _LONG:
        return [said, *paste]
    lines = textwrap.wrap(
        *(said, max(width, _LEAST)),
        subsequent_indent=GOES_ON,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [*lines, *paste]


class _Applier(cst.CSTTransformer):
    def __init__(self, source: Source, found: Sequence[Found]) -> None:
        super().__init__()
        self._source = source
        self._width = width_of(source.code)
        self._builds: dict[cst.CSTNode, Callable[[Any], Any]] = {}
        self._unwrapped: set[cst.CSTNode] = set()
        self._removed: set[cst.CSTNode] = set()
        self._spliced: set[cst.CSTNode] = set()
        self._comments: dict[cst.CSTNode, dict[tuple[str, str], list[Found]]] = {}
        self._lost: dict[cst.CSTNode, list[str]] = {}
        self._read(found)
        rewritten = [item for item in found if item.action == "rewritten"]
        self._imports: dict[cst.CSTNode, set[str]] = {}
        for node, name in imports.unneeded(source, imports.gone(found)):
            self._imports.setdefault(node, set()).add(name)
        self._placed = place(source, rewritten)
        self._new = imports.missing(source, self._placed.top)
        self._anchor = imports.anchor(source)

    @property
    def has_work(self) -> bool:
        return bool(self._builds or self._unwrapped or self._removed or self._comments or self._imports)

    def _read(self, found: Iterable[Found]) -> None:
        for item in found:
            for edit in item.edits:
                if isinstance(edit, Replace):
                    self._builds[edit.node] = edit.build
                elif isinstance(edit, Unwrap):
                    self._unwrapped.add(edit.item)
                elif isinstance(edit, Remove):
                    self._removed.add(edit.statement)
            if text := _text_of(item):
                statement = self._source.index.statement(item.node)
                if not _has_comment(self._source.module, statement):
                    key = (item.code, text if item.is_of_its_own else "")
                    self._comments.setdefault(statement, {}).setdefault(key, []).append(item)

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        # Children are left before their parents: an edit around another one sees it done.
        if original_node in self._builds:
            built = self._builds[original_node](updated_node)
            self._note_lost(original_node, updated_node, built)
            return built
        if isinstance(original_node, cst.With):
            updated_node = self._leave_with(original_node, updated_node)
        elif isinstance(original_node, cst.SimpleStatementLine):
            updated_node = self._leave_line(original_node, updated_node)
        elif isinstance(original_node, cst.SimpleStatementSuite):
            updated_node = self._leave_suite(original_node, updated_node)
        said = self._comments.get(original_node, {})
        lost = self._lost.get(original_node, [])
        if (said or lost) and isinstance(updated_node, cst.CSTNode):
            width = self._width - self._source.position(original_node)[1] + 1
            texts = [line for key in sorted(said) for line in _in_lines(self._comment_of(said[key]), width)]
            lines = [cst.EmptyLine(comment=cst.Comment(line)) for line in [*lost, *texts]]
            updated_node = updated_node.with_changes(
                leading_lines=[*getattr(updated_node, "leading_lines", ()), *lines]
            )
        if original_node in self._placed.behind or original_node in self._placed.absent:
            return cst.FlattenSentinel([updated_node, *self._behind(original_node)])
        if isinstance(original_node, cst.Try):
            return self._leave_try(original_node, updated_node)
        if isinstance(original_node, cst.IndentedBlock):
            block = self._leave_block(updated_node)
            return self._begun(block, self._placed.first.get(original_node, set()))
        if isinstance(original_node, cst.Module):
            return self._leave_module(updated_node)
        return updated_node

    def _comment_of(self, several: Sequence[Found]) -> str:
        return comment_of(sorted(several, key=lambda each: self._source.position(each.node)))

    # Imports that stand beside those of FSDP1, in functions or behind a question whether it is there.

    def _behind(self, line: cst.CSTNode) -> list[cst.SimpleStatementLine]:
        absent = sorted({self._source.local_name(need) for need in self._placed.absent.get(line, ())})
        lines = [cst.parse_statement(f"{name} = None") for name in absent]
        new = imports.statements(self._source, self._sorted(self._placed.behind.get(line, set())))
        return [*new, *(cst.ensure_type(each, cst.SimpleStatementLine) for each in lines)]

    def _sorted(self, needs: set[Need]) -> list[Need]:
        return sorted(needs, key=lambda need: (need.module, need.name))

    def _leave_try(self, original: cst.Try, updated: cst.Try) -> cst.Try:
        needs = self._placed.otherwise.get(original)
        if not needs:
            return updated
        new = imports.statements(self._source, self._sorted(needs))
        body = updated.orelse.body if updated.orelse is not None else None
        if body is None:
            return updated.with_changes(orelse=cst.Else(cst.IndentedBlock(new)))
        if not isinstance(body, cst.IndentedBlock):
            small = [each for line in new for each in line.body]
            lines = [cst.SimpleStatementLine([each]) for each in (*small, *body.body)]
            return updated.with_changes(orelse=cst.Else(cst.IndentedBlock(lines)))
        block = body.with_changes(body=[*new, *body.body])
        return updated.with_changes(orelse=cst.ensure_type(updated.orelse, cst.Else).with_changes(body=block))

    def _begun(self, block: cst.IndentedBlock, needs: set[Need]) -> cst.IndentedBlock:
        """Return a function's body that begins with imports, behind its docstring."""
        if not needs:
            return block
        first = block.body[0]
        small = first.body[0] if isinstance(first, cst.SimpleStatementLine) else None
        is_docstring = isinstance(small, cst.Expr) and isinstance(small.value, cst.BaseString)
        new = imports.statements(self._source, self._sorted(needs))
        before = list(block.body[:1]) if is_docstring else []
        return block.with_changes(body=[*before, *new, *block.body[len(before) :]])

    def _note_lost(self, original: cst.CSTNode, before: cst.CSTNode, after: cst.CSTNode) -> None:
        """Note the comments within what is replaced that its replacement lacks; they go above."""
        lost, kept = _Comments.of(before), _Comments.of(after)
        for text in kept:
            if text in lost:
                lost.remove(text)
        if lost:
            self._lost.setdefault(self._source.index.statement(original), []).extend(lost)

    # Statements that go away leave an empty line holder behind, which the block around them takes out.

    def _leave_line(self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine) -> Any:
        body = self._small_statements(original.body, updated.body)
        if len(body) == len(original.body) and all(a is b for a, b in zip(body, updated.body, strict=True)):
            return updated
        if body:
            body[-1] = body[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
            return updated.with_changes(body=body)
        gone = updated.with_changes(body=[cst.Pass()])
        self._spliced.add(gone)
        return gone

    def _leave_suite(self, original: cst.SimpleStatementSuite, updated: cst.SimpleStatementSuite) -> Any:
        body = self._small_statements(original.body, updated.body)
        if len(body) == len(original.body):
            return updated.with_changes(body=body)
        last = [body[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)] if body else [cst.Pass()]
        return updated.with_changes(body=[*body[:-1], *last])

    def _small_statements(
        self, original: Sequence[cst.BaseSmallStatement], updated: Sequence[cst.BaseSmallStatement]
    ) -> list[cst.BaseSmallStatement]:
        body: list[cst.BaseSmallStatement] = []
        for before, after in zip(original, updated, strict=True):
            if before in self._removed:
                continue
            left: cst.BaseSmallStatement | None = after
            if before in self._imports and isinstance(after, (cst.Import, cst.ImportFrom)):
                left = imports.without(after, self._imports[before])
            if left is not None:
                body.append(left)
        return body

    def _leave_with(self, original: cst.With, updated: cst.With) -> cst.With:
        pairs = zip(original.items, updated.items, strict=True)
        kept = [after for before, after in pairs if before not in self._unwrapped]
        if len(kept) == len(original.items):
            return updated
        if kept:
            # Behind the last item stands what stood there before: nothing, or a comma in parentheses.
            kept[-1] = kept[-1].with_changes(comma=updated.items[-1].comma)
            return updated.with_changes(items=kept)
        self._spliced.add(updated)
        return updated

    def _leave_block(self, block: cst.IndentedBlock) -> cst.IndentedBlock:
        body, left = self._splice(block.body)
        if not body:  # Python has no empty blocks
            body = [cst.SimpleStatementLine([cst.Pass()], leading_lines=left)]
            left = []
        return block.with_changes(body=body, footer=[*left, *block.footer]) if self._spliced else block

    def _leave_module(self, module: cst.Module) -> cst.Module:
        before, left = self._splice(module.body[: self._anchor])
        after, last = self._splice(module.body[self._anchor :])
        new: list[Any] = list(imports.statements(self._source, self._new))
        if new:
            # What stood above an import that went away stands above the new ones.
            new[0] = new[0].with_changes(leading_lines=left)
        elif after and left:
            after[0] = _preceded(left, after[0])
        body = [*before, *new, *after]
        # Where nothing was imported before, an empty line parts the imports from the code.
        if new and self._anchor == 0 and after:
            body[len(new)] = _preceded([cst.EmptyLine()], body[len(new)])
        return module.with_changes(body=body, footer=[*last, *module.footer])

    def _splice(self, statements: Sequence[Any]) -> tuple[list[Any], list[cst.EmptyLine]]:
        """Take out what goes away, and put the bodies of contexts in their place.

        Returns:
            The statements, and the comments that are left over behind the last of them.
        """
        body: list[Any] = []
        left: list[cst.EmptyLine] = []
        for statement in statements:
            if statement not in self._spliced:
                body.append(_preceded(left, statement) if left else statement)
                left = []
                continue
            left = [*left, *statement.leading_lines]
            if isinstance(statement, cst.SimpleStatementLine):
                comment = statement.trailing_whitespace.comment
                del comment  # it spoke of the statement that is gone
                continue
            inner, footer = _body_of(statement)
            body += [_preceded(left, inner[0]), *inner[1:]]
            left = footer
        return body, left


class _Comments(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    @classmethod
    def of(cls, node: cst.CSTNode) -> list[str]:
        """Return the comments within a node, from above."""
        found = cls()
        node.visit(found)
        return found.texts

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Comment):
            self.texts.append(node.value)
        return True


def _body_of(block: cst.With) -> tuple[list[Any], list[cst.EmptyLine]]:
    """Return the statements of a context, and the comments behind them."""
    if isinstance(block.body, cst.IndentedBlock):
        statements = list(block.body.body)
        if block.body.header.comment is not None:
            header = cst.EmptyLine(comment=block.body.header.comment)
            statements[0] = _preceded([header], statements[0])
        return statements, list(block.body.footer)
    assert isinstance(block.body, cst.SimpleStatementSuite)
    whitespace = block.body.trailing_whitespace
    return [cst.SimpleStatementLine(block.body.body, trailing_whitespace=whitespace)], []


def _preceded(lines: Sequence[cst.EmptyLine], statement: Any) -> Any:
    return statement.with_changes(leading_lines=[*lines, *statement.leading_lines])


def _has_comment(module: cst.Module, statement: cst.CSTNode) -> bool:
    """Tell whether a statement has been commented before: what else there was to say was said then."""
    lines = list(getattr(statement, "leading_lines", ()))
    if module.body and module.body[0] is statement:
        lines += module.header
    return any(line.comment is not None and line.comment.value.startswith(MARK) for line in lines)
