"""Sets of shard specs, with the fields that all of them share.

Consumers store specs in full. People edit them as a set, whose shards hold only the fields that
differ from the common ones.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left

from gazette_aio.protocol.consumer import (
    ApplyRequest,
    ListResponse,
    ShardSpec,
    intersect_shard_specs,
    subtract_shard_specs,
    union_shard_specs,
)


@dataclasses.dataclass(slots=True)
class Shard:
    """A shard of a set."""

    spec: ShardSpec = dataclasses.field(default_factory=ShardSpec)
    """Spec; unset fields are those of the set's `common`."""
    comment: str = ""
    """Remark for people."""
    delete: bool | None = None
    """Whether to delete the shard; None doesn't."""
    revision: int = 0
    """Revision of the shard's last modification: 0 creates it, and -1 expects no revision."""
    patched: bool = dataclasses.field(default=False, compare=False)
    """Whether `patch()` updated or inserted this shard."""

    @property
    def id(self) -> str:
        """ID of the shard."""
        return self.spec.id


@dataclasses.dataclass(slots=True)
class Set:
    """A set of shards."""

    common: ShardSpec = dataclasses.field(default_factory=ShardSpec)
    """Fields that the shards share; without ID."""
    shards: list[Shard] = dataclasses.field(default_factory=list[Shard])
    """Shards in the order of their IDs."""

    @classmethod
    def from_list_response(cls, response: ListResponse) -> Set:
        """Return the hoisted set of a listing, which must be in the order of IDs."""
        out = cls(
            shards=[
                Shard(spec=_copy(shard.spec), revision=shard.mod_revision)
                for shard in response.shards
            ]
        )
        out.hoist()
        return out

    def hoist(self) -> None:
        """Move the fields that all shards share to `common`.

        The fields of `common` are pushed down first, so that the shards don't change.
        """
        self.push_down()
        if not self.shards:
            return
        shared = _copy(self.shards[0].spec)
        for shard in self.shards[1:]:
            shared = intersect_shard_specs(shared, shard.spec)
        shared.ClearField("id")
        self.common = shared
        for shard in self.shards:
            shard.spec = subtract_shard_specs(shard.spec, shared)

    def push_down(self) -> None:
        """Move the fields of `common` to the shards, whose specs then are complete."""
        for shard in self.shards:
            shard.spec = union_shard_specs(shard.spec, self.common)
        self.common = ShardSpec()

    def patch(self, patch: Shard) -> Shard:
        """Update a shard of the set, or insert it.

        Args:
            patch: The shard; its unset fields don't change the set.

        Returns:
            The updated or inserted shard of the set.
        """
        index = bisect_left(self.shards, patch.id, key=_shard_id)
        if index == len(self.shards) or self.shards[index].id != patch.id:
            self.shards.insert(index, Shard(spec=ShardSpec(id=patch.id)))
        shard = self.shards[index]
        shard.spec = union_shard_specs(patch.spec, shard.spec)
        shard.comment = patch.comment or shard.comment
        shard.delete = shard.delete if patch.delete is None else patch.delete
        shard.revision = patch.revision or shard.revision
        shard.patched = True
        return shard

    def mark_unpatched_for_deletion(self) -> None:
        """Set `delete` of the shards which `patch()` didn't update or insert."""
        for shard in self.shards:
            if not shard.patched:
                shard.delete = True

    def to_apply_request(self) -> ApplyRequest:
        """Return the request that applies the shards of the set, and don't change the set."""
        request = ApplyRequest()
        for shard in self.shards:
            change = request.changes.add(expect_mod_revision=shard.revision)
            if shard.delete:
                change.delete = shard.id
            else:
                change.upsert.CopyFrom(union_shard_specs(shard.spec, self.common))
        return request


def _shard_id(shard: Shard) -> str:
    return shard.spec.id


def _copy(spec: ShardSpec) -> ShardSpec:
    copied = ShardSpec()
    copied.CopyFrom(spec)
    return copied
