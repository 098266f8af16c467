"""Trees of journal specs, in which directories hold the fields that their journals share.

Brokers store specs in full. People edit them as a tree, whose nodes hold only the fields which
differ from their parents. A node is a directory if its name is empty or ends in a slash, and a
journal otherwise.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from copy import deepcopy
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from gazette_aio.protocol._generated.broker_pb2 import ApplyRequest, JournalSpec, ListResponse
from gazette_aio.protocol.errors import ValidationError
from gazette_aio.protocol.journal import MAX_JOURNAL_LENGTH, validate_journal
from gazette_aio.protocol.journal_spec import (
    intersect_journal_specs,
    subtract_journal_specs,
    union_journal_specs,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNSET: Final = JournalSpec()


@dataclasses.dataclass(slots=True)
class Node:
    """A journal, or a directory with the fields which its journals share."""

    spec: JournalSpec = dataclasses.field(default_factory=JournalSpec)
    """Spec; unset fields are inherited from the directories above."""
    comment: str = ""
    """Remark for people."""
    delete: bool | None = None
    """Whether to delete the journals; None is inherited."""
    revision: int = 0
    """Revision of the journal's last modification; journals only."""
    children: list[Node] = dataclasses.field(default_factory=list["Node"])
    """Nodes of the directory in the order of names; directories only."""
    has_no_stores: bool = False
    """Whether the list of fragment stores is explicitly empty, and thus none are inherited."""
    patched: bool = dataclasses.field(default=False, compare=False)
    """Whether `patch()` updated or inserted this journal."""
    line: int = dataclasses.field(default=0, compare=False, repr=False)
    """Line of the document, or zero."""

    @classmethod
    def from_list_response(cls, response: ListResponse) -> Node:
        """Return the hoisted tree of a listing, which must be in the order of names."""
        root = _extract_tree(
            [
                cls(spec=deepcopy(journal.spec), revision=journal.mod_revision)
                for journal in response.journals
            ]
        )
        root._hoist()
        return root

    @property
    def name(self) -> str:
        """Name of the journal, or of the directory with its slash."""
        return self.spec.name

    @property
    def is_directory(self) -> bool:
        """Whether this is a directory."""
        return not self.spec.name or self.spec.name.endswith("/")

    def validate(self) -> None:
        """Check the shape of the tree. Specs may be partial, and aren't checked.

        Raises:
            ValidationError: A node isn't valid in its place.
        """
        for _, error in self.find_errors():
            raise error

    def find_errors(self) -> Iterator[tuple[Node, ValidationError]]:
        """Yield the errors of `validate()`, each with its node."""
        if not self.is_directory:
            try:
                validate_journal(self.name)
            except ValidationError as error:
                yield self, error.extend("Name")
            if self.children:
                yield (
                    self,
                    ValidationError(f"expected no Children with non-directory Node ({self.name})"),
                )
            return
        if self.revision:
            yield self, ValidationError(f"unexpected Revision ({self.revision})")
        if not self.children:
            yield self, ValidationError("expected one or more Children")
        previous: Node | None = None
        for index, child in enumerate(self.children):
            if not child.name.startswith(self.name):
                yield (
                    child,
                    ValidationError(
                        f"expected parent Name to prefix child ({self.name} vs {child.name})"
                    ),
                )
            if previous is not None and previous.name >= child.name:
                yield (
                    child,
                    ValidationError(
                        f"expected Children to be ordered "
                        f"(ind {index}; {previous.name} vs {child.name})"
                    ),
                )
            yield from child.find_errors()
            previous = child

    def hoist(self) -> None:
        """Move the fields which all children of a directory share to the directory, bottom up.

        Fields of directories are pushed down first, so that the journals don't change.
        """
        self.push_down()
        self._hoist()

    def _hoist(self) -> None:
        if not self.is_directory or not self.children:
            return
        for child in self.children:
            child._hoist()
        first = self.children[0]
        shared, delete = deepcopy(first.spec), first.delete
        for child in self.children[1:]:
            if child.delete != delete:
                delete = None
            shared = intersect_journal_specs(shared, child.spec)
        # A suspension belongs to one journal.
        shared.ClearField("suspend")
        shared.name = self.name
        self.spec, self.delete = shared, delete
        for child in self.children:
            if delete is not None:
                child.delete = None
            child.spec = subtract_journal_specs(child.spec, shared)
            child.has_no_stores = False
        # A child without stores leaves no stores to share, thus there are none to exclude.
        self.has_no_stores = False

    def push_down(self) -> None:
        """Move the fields of directories to their journals, whose specs then are complete."""
        for child in self.children:
            if child.delete is None:
                child.delete = self.delete
            child.spec, child.has_no_stores = child._inherit(
                self.spec, parent_has_no_stores=self.has_no_stores
            )
            child.push_down()
        if self.is_directory:
            self.delete, self.has_no_stores = None, False
            self.spec = JournalSpec(name=self.name)

    def _inherit(
        self, parent: JournalSpec, *, parent_has_no_stores: bool
    ) -> tuple[JournalSpec, bool]:
        """Return the spec with inherited fields, and whether its stores are explicitly empty."""
        spec = union_journal_specs(self.spec, parent)
        if spec.fragment.stores:
            if self.spec.fragment.stores or not self.has_no_stores:
                return spec, False
            del spec.fragment.stores[:]
        return spec, self.has_no_stores or parent_has_no_stores

    def walk_terminal_nodes(self) -> Iterator[Node]:
        """Yield the journals of the tree in order."""
        if not self.is_directory:
            yield self
            return
        for child in self.children:
            yield from child.walk_terminal_nodes()

    def patch(self, patch: Node) -> Node:
        """Update a journal of the tree, or insert it.

        Args:
            patch: The journal; its unset fields don't change the tree.

        Returns:
            The updated or inserted node of the tree.

        Raises:
            ValidationError: The patch is a directory.
        """
        if patch.is_directory:
            raise ValidationError(f"expected a journal to patch ({patch.name})")
        if not self._holds(patch.name):
            # The empty name is a prefix of all names, thus this happens at most once.
            self._wrap()
        node = self
        while node.is_directory:
            index = bisect_right(node.children, patch.name, key=attrgetter("name"))
            if index and node.children[index - 1]._holds(patch.name):
                node = node.children[index - 1]
                continue
            inserted = dataclasses.replace(patch, spec=deepcopy(patch.spec), children=[])
            node.children.insert(index, inserted)
            node = inserted
        node.comment = patch.comment or node.comment
        node.delete = node.delete if patch.delete is None else patch.delete
        node.revision = patch.revision or node.revision
        node.spec, node.has_no_stores = patch._inherit(
            node.spec, parent_has_no_stores=node.has_no_stores
        )
        node.patched = True
        return node

    def _holds(self, name: str) -> bool:
        # A journal contains no other journal, even if its name is a prefix of the other's name.
        return name.startswith(self.name) if self.is_directory else name == self.name

    def _wrap(self) -> None:
        inner = dataclasses.replace(self)
        self.spec, self.children = JournalSpec(), [inner]
        self.comment, self.delete, self.revision = "", None, 0
        self.has_no_stores = self.patched = False

    def mark_unpatched_for_deletion(self) -> None:
        """Set `delete` of the journals which `patch()` didn't update or insert."""
        for node in self.walk_terminal_nodes():
            if not node.patched:
                node.delete = True

    def to_apply_request(self) -> ApplyRequest:
        """Return the request which applies the journals of the tree, and don't change the tree."""
        request = ApplyRequest()
        for node, spec, delete in self._resolve(_UNSET, has_no_stores=False, delete=None):
            change = request.changes.add(expect_mod_revision=node.revision)
            if delete:
                change.delete = node.name
            else:
                change.upsert.CopyFrom(spec)
        return request

    def _resolve(
        self, parent: JournalSpec, *, has_no_stores: bool, delete: bool | None
    ) -> Iterator[tuple[Node, JournalSpec, bool | None]]:
        spec, has_no_stores = self._inherit(parent, parent_has_no_stores=has_no_stores)
        delete = delete if self.delete is None else self.delete
        if not self.is_directory:
            yield self, spec, delete
            return
        for child in self.children:
            yield from child._resolve(spec, has_no_stores=has_no_stores, delete=delete)


def _shared_prefix(lhs: str, rhs: str) -> int:
    """Return the length of the longest common prefix which ends in a slash."""
    length = 0
    # Listings aren't validated, but mustn't nest without limit. No valid name is longer.
    lhs, rhs = lhs[:MAX_JOURNAL_LENGTH], rhs[:MAX_JOURNAL_LENGTH]
    for lhs_part, rhs_part in zip(lhs.split("/")[:-1], rhs.split("/")[:-1], strict=False):
        if lhs_part != rhs_part:
            break
        length += len(lhs_part) + 1
    return length


def _extract_tree(nodes: list[Node]) -> Node:
    """Return the tree of sorted journals, with a directory where two or more share a prefix.

    One pass; a stack holds the directories which enclose the current node.
    """
    if not nodes:
        return Node()
    enclosing: list[tuple[int, list[Node]]] = []
    last = nodes[0]

    def close() -> Node:
        length, children = enclosing.pop()
        children.append(last)
        return Node(spec=JournalSpec(name=children[0].name[:length]), children=children)

    for node in nodes[1:]:
        shared = _shared_prefix(last.name, node.name)
        while enclosing and enclosing[-1][0] > shared:
            last = close()
        if enclosing and enclosing[-1][0] == shared:
            enclosing[-1][1].append(last)
        else:
            enclosing.append((shared, [last]))
        last = node
    while enclosing:
        last = close()
    return last
